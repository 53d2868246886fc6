//! What a running function says to its host before its result: calls of the host's functions, news of its progress, values that it
//! yields. Decides what is let through and carries the answers back; the functions themselves are JavaScript's.
//!
//! Bounded on every side. A call of a host function holds one of `max_pending` places until its answer was written to the worker, so
//! a worker that reads no answers blocks itself; calls beyond `max_pending` are refused with an error that the function sees, and after
//! `max_calls` refusals the call ends. Yielded values are at most [`YIELD_WINDOW`] ahead of those that the host has taken.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde::Serialize;
use serde_json::{json, value::RawValue};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::{
    error::{Code, Phase, SandboxError},
    executor::{CallEvents, EventKind},
    process::Shortcut,
    worker::protocol::{Offer, Said, answer_frame, resume_frame},
};

/// Values that a function may have yielded before the host has taken the first of them.
pub const YIELD_WINDOW: u32 = 16;
/// How deep arguments may nest: code that walks them is rarely written for more.
const MAX_ARGUMENT_LEVELS: usize = 128;

/// Refusals are not waited for, so there are so many at most, whatever the host allows of calls; and what each shows of a name, and of the names
/// that there are.
const MAX_REFUSED_CALLS: u32 = 10_000;
const MAX_SHOWN_CHARS: usize = 100;
const MAX_SHOWN_NAMES: usize = 20;

/// Frames for the worker, or what is left of them. They hold their places until they were written.
#[derive(Debug)]
pub struct Outgoing {
    /// The frames.
    pub bytes: Vec<u8>,
    _places: Vec<OwnedSemaphorePermit>,
    _unwritten: Unwritten,
}

/// Counts itself while it exists.
#[derive(Debug)]
struct Unwritten(Arc<AtomicUsize>);

impl Unwritten {
    fn among(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// See the module.
pub struct Talk {
    offer: Offer,
    names: BTreeSet<String>,
    places: Arc<Semaphore>,
    state: Mutex<State>,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    /// How many of `outgoing` are not written yet.
    unwritten: Arc<AtomicUsize>,
    events: Arc<dyn CallEvents>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    calls: u32,
    refused: u32,
    /// Calls that the host has not answered, with the place that each holds.
    pending: BTreeMap<u32, OwnedSemaphorePermit>,
    /// Yielded values that the host has not taken.
    untaken: u32,
    /// Answers that wait for the last of those that come together.
    together: Vec<u8>,
    together_places: Vec<OwnedSemaphorePermit>,
    /// Writes without the writer of `outgoing`: waking it costs more than all the rest of an answer.
    shortcut: Option<Shortcut>,
}

#[derive(Serialize)]
struct CallEvent<'a> {
    id: u32,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<&'a RawValue>,
}

impl Talk {
    /// A conversation under `offer`; the receiver has what is to be written to the worker.
    pub fn new(offer: Offer, events: Arc<dyn CallEvents>) -> (Arc<Self>, mpsc::UnboundedReceiver<Outgoing>) {
        // Unbounded, but never long: an answer holds a place, refusals and resumptions are counted.
        let (outgoing, written) = mpsc::unbounded_channel();
        let talk = Self {
            names: offer.functions.iter().cloned().collect(),
            places: Arc::new(Semaphore::new(offer.max_pending as usize)),
            offer,
            state: Mutex::default(),
            outgoing,
            unwritten: Arc::default(),
            events,
        };
        (Arc::new(talk), written)
    }

    /// Takes what the worker said. An error ends the call: the worker does not keep to the rules that its script keeps to.
    pub fn hear(&self, said: Said) -> Result<(), SandboxError> {
        match said {
            Said::Call { id, name, args } => self.hear_call(id, &name, args.as_deref()),
            Said::Progress(json) => {
                if !self.offer.progress {
                    return Err(broken("progress that nobody asked for"));
                }
                if !self.lock().closed {
                    self.events.event(EventKind::Progress, json);
                }
                Ok(())
            }
            Said::Yielded(json) => self.hear_yielded(json),
        }
    }

    fn hear_call(&self, id: u32, name: &str, args: Option<&RawValue>) -> Result<(), SandboxError> {
        let mut state = self.lock();
        if state.closed {
            return Ok(());
        }
        if state.pending.contains_key(&id) {
            return Err(broken("two calls of host functions with one number"));
        }
        let place = match self.place(&mut state, name, args) {
            Ok(place) => place,
            Err(reason) => {
                state.refused += 1;
                let most = self.offer.max_calls.min(MAX_REFUSED_CALLS);
                if state.refused > most {
                    return Err(flooded(most));
                }
                let error = json!({ "name": "Error", "message": reason });
                let frame = answer_frame(id, false, &error.to_string())
                    .map_err(|error| broken(&error.to_string()))?;
                self.send(&state, frame, Vec::new());
                return Ok(());
            }
        };
        state.calls += 1;
        state.pending.insert(id, place);
        drop(state);
        let event = serde_json::to_string(&CallEvent { id, name, args })
            .map_err(|error| broken(&error.to_string()))?;
        self.events.event(EventKind::Call, event);
        Ok(())
    }

    /// A place for one more call, or why there is none, in words for the function.
    fn place(
        &self,
        state: &mut State,
        name: &str,
        args: Option<&RawValue>,
    ) -> Result<OwnedSemaphorePermit, String> {
        if !self.names.contains(name) {
            let shown: String = name.chars().take(MAX_SHOWN_CHARS).collect();
            let known = self.offer.functions.iter().take(MAX_SHOWN_NAMES).map(String::as_str);
            let known = known.collect::<Vec<_>>().join(", ");
            let more = if self.offer.functions.len() > MAX_SHOWN_NAMES { ", …" } else { "" };
            return Err(format!("there is no host function {shown:?}; this call was given: {known}{more}"));
        }
        if args.is_some_and(|args| levels(args.get()) > MAX_ARGUMENT_LEVELS) {
            return Err(format!("the arguments of {name} nest deeper than {MAX_ARGUMENT_LEVELS} levels"));
        }
        if state.calls >= self.offer.max_calls {
            return Err(format!(
                "this call has called host functions {} times, which is its limit (functionLimits.calls)",
                self.offer.max_calls
            ));
        }
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            format!(
                "{} calls of host functions are under way, which is the limit (functionLimits.pending): await some of them first",
                self.offer.max_pending
            )
        })
    }

    fn hear_yielded(&self, json: String) -> Result<(), SandboxError> {
        if !self.offer.yields {
            return Err(broken("a yielded value that nobody asked for"));
        }
        let mut state = self.lock();
        if state.closed {
            return Ok(());
        }
        if state.untaken >= YIELD_WINDOW {
            return Err(broken("more yielded values than the host has room for"));
        }
        state.untaken += 1;
        drop(state);
        self.events.event(EventKind::Yield, json);
        Ok(())
    }

    /// From now on answers may be written by `shortcut`: what goes before them was written.
    pub fn write_by(&self, shortcut: Shortcut) {
        let mut state = self.lock();
        if !state.closed {
            state.shortcut = Some(shortcut);
        }
    }

    /// The host's answer to a call: JSON of the result (empty for `undefined`), or of `{ name, message }`. An answer to no pending
    /// call, and any answer after the end, is ignored. With `more` it waits for the next one, and goes with it.
    pub fn answer(&self, id: u32, ok: bool, json: &str, more: bool) {
        let mut state = self.lock();
        if let Some(place) = state.pending.remove(&id) {
            let frame = answer_frame(id, ok, json).or_else(|error| {
                let error = json!({ "name": "RangeError", "message": error.to_string() });
                answer_frame(id, false, &error.to_string())
            });
            if let Ok(frame) = frame {
                state.together.extend_from_slice(&frame);
                state.together_places.push(place);
            }
        }
        if more || state.together.is_empty() {
            return;
        }
        let frames = std::mem::take(&mut state.together);
        let places = std::mem::take(&mut state.together_places);
        self.send(&state, frames, places);
    }

    /// The host has taken one yielded value.
    pub fn taken(&self) {
        let mut state = self.lock();
        if state.untaken == 0 || state.closed {
            return;
        }
        state.untaken -= 1;
        self.send(&state, resume_frame(), Vec::new());
    }

    /// The call is settled: nothing more is heard or said.
    pub fn close(&self) {
        let mut state = self.lock();
        *state = State { closed: true, ..State::default() };
    }

    /// Writes frames at once where there is room, or hands them, or what is left of them, to the writer. The caller's lock keeps them whole:
    /// nobody else writes meanwhile.
    fn send(&self, state: &State, mut bytes: Vec<u8>, places: Vec<OwnedSemaphorePermit>) {
        if let Some(shortcut) = &state.shortcut
            && self.unwritten.load(Ordering::Acquire) == 0
        {
            match shortcut.write(&bytes) {
                Ok(count) if count == bytes.len() => return,
                Ok(count) => drop(bytes.drain(..count)),
                // A worker that is gone needs no answer.
                Err(_) => return,
            }
        }
        let unwritten = Unwritten::among(&self.unwritten);
        let _ = self.outgoing.send(Outgoing { bytes, _places: places, _unwritten: unwritten });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn broken(what: &str) -> SandboxError {
    let message = format!("Function execution failed: the function broke its own channel ({what})");
    SandboxError::new(Code::ToolError, Phase::Run, message)
}

fn flooded(limit: u32) -> SandboxError {
    let message = format!(
        "Function execution failed: more than {limit} calls of host functions were refused; the function goes on calling in spite of the errors that it gets"
    );
    SandboxError::new(Code::ToolError, Phase::Run, message)
}

/// How deep a valid JSON text nests.
fn levels(json: &str) -> usize {
    let (mut level, mut most, mut in_text, mut escaped) = (0_usize, 0_usize, false, false);
    for byte in json.bytes() {
        if in_text {
            (in_text, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
            continue;
        }
        match byte {
            b'"' => in_text = true,
            b'[' | b'{' => {
                level += 1;
                most = most.max(level);
            }
            b']' | b'}' => level = level.saturating_sub(1),
            _ => {}
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<(EventKind, String)>>);

    impl CallEvents for Heard {
        fn event(&self, kind: EventKind, text: String) {
            self.0.lock().unwrap().push((kind, text));
        }
    }

    fn offer() -> Offer {
        Offer {
            functions: vec!["lookup".into(), "crm.find".into()],
            progress: true,
            yields: true,
            max_pending: 2,
            max_calls: 4,
            max_message_bytes: 1000,
        }
    }

    fn call(id: u32, name: &str) -> Said {
        Said::Call { id, name: name.into(), args: Some(RawValue::from_string("{\"a\":1}".into()).unwrap()) }
    }

    fn start(offer: Offer) -> (Arc<Talk>, mpsc::UnboundedReceiver<Outgoing>, Arc<Heard>) {
        let heard = Arc::new(Heard::default());
        let (talk, out) = Talk::new(offer, Arc::clone(&heard) as Arc<dyn CallEvents>);
        (talk, out, heard)
    }

    fn text(outgoing: &Outgoing) -> String {
        String::from_utf8_lossy(&outgoing.bytes[crate::worker::protocol::HEADER_BYTES..]).into_owned()
    }

    #[test]
    fn a_call_is_told_and_its_answer_goes_back() {
        let (talk, mut out, heard) = start(offer());
        talk.hear(call(7, "crm.find")).unwrap();
        assert_eq!(
            *heard.0.lock().unwrap(),
            [(EventKind::Call, r#"{"id":7,"name":"crm.find","args":{"a":1}}"#.to_owned())]
        );
        talk.answer(8, true, "1", false);
        talk.answer(7, true, "{\"b\":2}", false);
        talk.answer(7, true, "again", false);
        assert_eq!(text(&out.try_recv().unwrap()), r#"[7,true,{"b":2}]"#);
        assert!(out.try_recv().is_err(), "one call has one answer");
    }

    #[test]
    fn a_place_is_free_again_once_the_answer_was_written() {
        let (talk, mut out, _) = start(offer());
        talk.hear(call(1, "lookup")).unwrap();
        talk.hear(call(2, "lookup")).unwrap();
        talk.answer(1, true, "", false);
        talk.hear(call(3, "lookup")).unwrap();
        let answered = out.try_recv().unwrap();
        let refused = out.try_recv().unwrap();
        assert_eq!(text(&answered), "[1,true]");
        assert!(text(&refused).contains("functionLimits.pending"), "{}", text(&refused));
        drop(answered);
        talk.hear(call(4, "lookup")).unwrap();
        assert!(out.try_recv().is_err(), "there is room now");
    }

    #[test]
    fn answers_that_come_together_go_together() {
        let (talk, mut out, _) = start(offer());
        talk.hear(call(1, "lookup")).unwrap();
        talk.hear(call(2, "lookup")).unwrap();
        talk.answer(1, true, "1", true);
        assert!(out.try_recv().is_err(), "it waits for the next one");
        talk.answer(9, true, "of no call", true);
        talk.answer(2, true, "2", false);
        let both = out.try_recv().unwrap();
        let expected = [answer_frame(1, true, "1").unwrap(), answer_frame(2, true, "2").unwrap()].concat();
        assert_eq!(both.bytes, expected);
        assert!(out.try_recv().is_err());
        talk.hear(call(3, "lookup")).unwrap();
        assert!(text(&out.try_recv().unwrap()).contains("functionLimits.pending"), "their places are held");
        drop(both);
        talk.hear(call(4, "lookup")).unwrap();
        talk.answer(4, true, "4", true);
        talk.answer(5, true, "of no call", false);
        assert_eq!(
            text(&out.try_recv().unwrap()),
            "[4,true,4]",
            "the last one sends them, whatever it answers"
        );
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn an_answer_takes_the_shortcut_only_behind_what_was_said_before() {
        use std::io::Read;

        use crate::process::Duplex;

        let (ours, mut workers) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let ours = tokio::net::UnixStream::from_std(ours).unwrap();
        let (talk, mut out, _) = start(Offer { max_pending: 3, ..offer() });
        for id in 1..4 {
            talk.hear(call(id, "lookup")).unwrap();
        }
        talk.answer(1, true, "1", false);
        talk.write_by(ours.shortcut().unwrap());
        talk.answer(2, true, "2", false);
        let (first, second) = (out.try_recv().unwrap(), out.try_recv().unwrap());
        assert_eq!((text(&first).as_str(), text(&second).as_str()), ("[1,true,1]", "[2,true,2]"));
        drop((first, second));
        talk.answer(3, true, "3", false);
        assert!(out.try_recv().is_err(), "nothing waits, so it is written at once");
        let frame = answer_frame(3, true, "3").unwrap();
        let mut read = vec![0; frame.len()];
        workers.read_exact(&mut read).unwrap();
        assert_eq!(read, frame);

        // What there is no room for goes the usual way, from the byte on at which it ended.
        talk.hear(call(4, "lookup")).unwrap();
        let large = format!("\"{}\"", "x".repeat(4 << 20));
        talk.answer(4, true, &large, false);
        let left = out.try_recv().unwrap();
        let frame = answer_frame(4, true, &large).unwrap();
        assert!(left.bytes.len() < frame.len(), "some of it was written");
        let mut written = vec![0; frame.len() - left.bytes.len()];
        workers.read_exact(&mut written).unwrap();
        assert!([written, left.bytes.clone()].concat() == frame);
        drop(left);

        // Once the call is settled, nothing of it keeps the channel open.
        talk.close();
        drop(ours);
        assert_eq!(workers.read(&mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn calls_in_all_are_limited_and_a_flood_ends_the_call() {
        let (talk, mut out, _) = start(offer());
        for id in 0..4 {
            talk.hear(call(id, "lookup")).unwrap();
            talk.answer(id, true, "1", false);
            drop(out.try_recv().unwrap());
        }
        for id in 10..14 {
            talk.hear(call(id, "lookup")).unwrap();
            assert!(text(&out.try_recv().unwrap()).contains("functionLimits.calls"));
        }
        assert_eq!(talk.hear(call(20, "lookup")).unwrap_err().code, Code::ToolError);
    }

    #[test]
    fn what_was_not_offered_is_refused() {
        let (talk, mut out, heard) = start(Offer { progress: false, yields: false, ..offer() });
        talk.hear(call(1, "__proto__")).unwrap();
        assert!(text(&out.try_recv().unwrap()).contains("there is no host function"));
        talk.hear(call(3, &"x".repeat(100_000))).unwrap();
        assert!(out.try_recv().unwrap().bytes.len() < 1000, "a refusal is short, whatever was asked for");
        assert!(talk.hear(Said::Progress("{}".into())).is_err());
        assert!(talk.hear(Said::Yielded("1".into())).is_err());
        let deep = RawValue::from_string(format!("{}{}", "[".repeat(129), "]".repeat(129))).unwrap();
        talk.hear(Said::Call { id: 2, name: "lookup".into(), args: Some(deep) }).unwrap();
        assert!(text(&out.try_recv().unwrap()).contains("deeper than 128"));
        assert!(heard.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_number_is_used_once() {
        let (talk, _out, _) = start(offer());
        talk.hear(call(1, "lookup")).unwrap();
        assert!(talk.hear(call(1, "lookup")).is_err());
    }

    #[test]
    fn yielded_values_wait_for_the_host() {
        let (talk, mut out, heard) = start(offer());
        for _ in 0..YIELD_WINDOW {
            talk.hear(Said::Yielded("1".into())).unwrap();
        }
        assert!(talk.hear(Said::Yielded("1".into())).is_err());
        talk.taken();
        assert!(!out.try_recv().unwrap().bytes.is_empty());
        talk.hear(Said::Yielded("1".into())).unwrap();
        assert_eq!(heard.0.lock().unwrap().len(), YIELD_WINDOW as usize + 1);
    }

    #[test]
    fn after_the_end_nothing_is_told_or_said() {
        let (talk, mut out, heard) = start(offer());
        talk.hear(call(1, "lookup")).unwrap();
        talk.close();
        talk.answer(1, true, "1", false);
        talk.hear(call(2, "lookup")).unwrap();
        talk.hear(Said::Yielded("1".into())).unwrap();
        talk.hear(Said::Progress("1".into())).unwrap();
        talk.taken();
        assert!(out.try_recv().is_err());
        assert_eq!(heard.0.lock().unwrap().len(), 1);
    }

    #[test]
    fn levels_are_counted_outside_of_texts() {
        for (json, expected) in [("1", 0), ("[]", 1), (r#"{"[[\"[":["]"]}"#, 2), ("[[1],[[2]]]", 3)] {
            assert_eq!(levels(json), expected, "{json}");
        }
    }
}
