// All attempts. Each is data:
//
//   id        family and name
//   what      what it tries, as a sentence without its subject
//   from      the tier from which on it must fail
//   layer     what forbids it, one of several where it is a list; a name of the report's says by itself, in force or not, whether the attempt
//             must fail, whatever the tier
//   attempt   the function that a tool runs, with its surroundings (see `Stage.world`) and the kit; or `script`, which an
//             install script of a package runs; or `module`, which a package runs while it is loaded
//   control   what runs outside instead of it, where the same would take too long
//   escaped   from what came of it (`value`, `error`, `text` of both and of what was printed, `sizes`), the stage, and its world: what got
//             out, or nothing; absent: whether the secret of the stage is in the text
//   uses      victims that it needs: calls of others, in the same sandbox (`sibling`), without packages (`neighbour`), or of another tenant (`stranger`)
//   options   options of the executor that it is about
//   collects  whether the caller takes the files of the working folder
//   needs     from facts about the machine and the user, why it cannot be tried here even outside; or nothing
//   lacking   from what its control gave, why the machine has nothing to try; or nothing
//   undo      puts back what a success changed

import bombs from './families/bombs.mjs';
import channels from './families/channels.mjs';
import collected from './families/collected.mjs';
import egress from './families/egress.mjs';
import files from './families/files.mjs';
import install from './families/install.mjs';
import leftovers from './families/leftovers.mjs';
import poison from './families/poison.mjs';
import processes from './families/processes.mjs';
import removal from './families/removal.mjs';
import sockets from './families/sockets.mjs';
import surroundings from './families/surroundings.mjs';
import syscalls from './families/syscalls.mjs';
import vehicles from './families/vehicles.mjs';
import writes from './families/writes.mjs';

export const ATTEMPTS = [
  files,
  writes,
  removal,
  leftovers,
  processes,
  channels,
  collected,
  surroundings,
  sockets,
  egress,
  bombs,
  syscalls,
  vehicles,
  install,
  poison,
].flat();
