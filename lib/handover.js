'use strict';

// What is told of a call once it is answered: not before whoever awaits the answer has it.

const { soon } = require('./intrinsics.js');

/** Keeps one thing that is to be told until the answer of a call was handed over. */
class Handover {
  #isDone = false;
  #waiting;

  /** Runs `act` now, or when the answer was handed over. To be called once at most. */
  after(act) {
    if (this.#isDone) act();
    else this.#waiting = act;
  }

  /**
   * The promise of the call settles now. Through how many others that goes until the caller's own code runs is not known here, but all
   * of that happens before the event loop goes on.
   */
  settled() {
    soon(() => {
      this.#isDone = true;
      this.#waiting?.();
    });
  }
}

exports.Handover = Handover;
