//! What this library changes in Node's V8 platform, before `main`, in the table of virtual functions of `node::NodePlatform`.
//!
//! - `NumberOfWorkerThreads` answers 0. V8 14 (Node 26) asks for it at each collection and otherwise posts a task, whatever its
//!   flags; a forked child has no thread to run it. With 0, a job is run by the thread that joins it.
//! - `PostTaskOnWorkerThreadImpl` and its delayed sibling count, and forward. A zygote that has posted a task does not serve.
//! - `CurrentClockTimeMillis` counts, and forwards: each `Date` of each realm takes its time there.
//!
//! The table and the functions are found by name in the program's dynamic symbol table. A slot is changed only where it holds that
//! very function. Where anything is missing, nothing is changed; the trial at boot decides then.

use std::{
    ffi::{CStr, c_int, c_void},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use crate::reads::{self, Door};

const TABLE: &CStr = c"_ZTVN4node12NodePlatformE";
const WORKER_COUNT: &CStr = c"_ZN4node12NodePlatform21NumberOfWorkerThreadsEv";
const POST: &CStr = c"_ZN4node12NodePlatform26PostTaskOnWorkerThreadImplEN2v812TaskPriorityESt10unique_ptrINS1_4TaskESt14default_deleteIS4_EERKNS1_14SourceLocationE";
const POST_DELAYED: &CStr = c"_ZN4node12NodePlatform33PostDelayedTaskOnWorkerThreadImplEN2v812TaskPriorityESt10unique_ptrINS1_4TaskESt14default_deleteIS4_EEdRKNS1_14SourceLocationE";
const CLOCK: &CStr = c"_ZN4node12NodePlatform22CurrentClockTimeMillisEv";

/// Slots that are looked at. The table has 30 or more on each supported Node.
const SLOTS: usize = 28;

/// The functions that were in the slots; 0 where the slot is unchanged.
static POST_BEFORE: AtomicUsize = AtomicUsize::new(0);
static POST_DELAYED_BEFORE: AtomicUsize = AtomicUsize::new(0);
static CLOCK_BEFORE: AtomicUsize = AtomicUsize::new(0);

static POSTED: AtomicUsize = AtomicUsize::new(0);
static IS_THREADLESS: AtomicBool = AtomicBool::new(false);

type Post = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *const c_void);
type PostDelayed = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, f64, *const c_void);
type Clock = unsafe extern "C" fn(*mut c_void) -> f64;

/// Changes the slots. Before `main` only: nobody calls through the table then.
pub(crate) fn patch() {
    let Some(table) = symbol(TABLE) else { return };
    let threadless = replace(table, WORKER_COUNT, no_worker_threads as *const () as usize);
    IS_THREADLESS.store(threadless.is_some(), Relaxed);
    for (name, before, function) in [
        (POST, &POST_BEFORE, post as *const () as usize),
        (POST_DELAYED, &POST_DELAYED_BEFORE, post_delayed as *const () as usize),
        (CLOCK, &CLOCK_BEFORE, clock as *const () as usize),
    ] {
        // Known before it is in the slot: the function forwards to it.
        before.store(symbol(name).unwrap_or(0), Relaxed);
        if replace(table, name, function).is_none() {
            before.store(0, Relaxed);
        }
    }
}

/// Tasks that V8 gave to worker threads so far.
pub(crate) fn posted() -> usize {
    POSTED.load(Relaxed)
}

/// Whether V8 is told that there are no worker threads.
pub(crate) fn is_threadless() -> bool {
    IS_THREADLESS.load(Relaxed)
}

/// Whether reads of the clock by JavaScript are seen.
pub(crate) fn sees_clock() -> bool {
    CLOCK_BEFORE.load(Relaxed) != 0
}

/// Puts `function` into the slot of the table that holds the function called `name`, which it gives.
fn replace(table: usize, name: &CStr, function: usize) -> Option<usize> {
    let wanted = symbol(name)?;
    // SAFETY: the table is an array of pointers of the program's, of at least as many.
    let slots = unsafe { std::slice::from_raw_parts(table as *const usize, SLOTS) };
    let index = slots.iter().position(|slot| *slot == wanted)?;
    let slot = table + index * size_of::<usize>();
    // SAFETY: asks for a number.
    let page_bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    let page = (slot / page_bytes * page_bytes) as *mut c_void;
    // SAFETY: one page of the program's variables, which the dynamic linker has made read-only after relocation; a pointer does
    // not cross pages. No other thread is there yet, and what the slot gets has the type of what it held.
    unsafe {
        if libc::mprotect(page, page_bytes, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return None;
        }
        (slot as *mut usize).write_volatile(function);
        libc::mprotect(page, page_bytes, libc::PROT_READ);
    }
    Some(wanted)
}

fn symbol(name: &CStr) -> Option<usize> {
    // SAFETY: reads the name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found as usize)
}

/// `int NodePlatform::NumberOfWorkerThreads()`.
extern "C" fn no_worker_threads(_platform: *mut c_void) -> c_int {
    0
}

/// `void NodePlatform::PostTaskOnWorkerThreadImpl(TaskPriority, std::unique_ptr<Task>, const SourceLocation&)`.
unsafe extern "C" fn post(
    platform: *mut c_void,
    priority: c_int,
    task: *mut c_void,
    location: *const c_void,
) {
    POSTED.fetch_add(1, Relaxed);
    // SAFETY: the function that was in this slot, with what it would have been called with: a `unique_ptr` is passed by address.
    unsafe {
        let before = std::mem::transmute::<usize, Post>(POST_BEFORE.load(Relaxed));
        before(platform, priority, task, location);
    }
}

/// The same after a delay.
unsafe extern "C" fn post_delayed(
    platform: *mut c_void,
    priority: c_int,
    task: *mut c_void,
    delay_seconds: f64,
    location: *const c_void,
) {
    POSTED.fetch_add(1, Relaxed);
    // SAFETY: as above.
    unsafe {
        let before = std::mem::transmute::<usize, PostDelayed>(POST_DELAYED_BEFORE.load(Relaxed));
        before(platform, priority, task, delay_seconds, location);
    }
}

/// `double NodePlatform::CurrentClockTimeMillis()`.
unsafe extern "C" fn clock(platform: *mut c_void) -> f64 {
    reads::note(Door::Clock, 0);
    // SAFETY: as above.
    unsafe {
        let before = std::mem::transmute::<usize, Clock>(CLOCK_BEFORE.load(Relaxed));
        before(platform)
    }
}
