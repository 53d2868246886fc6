//! How a forked child ends: by `_exit`. Node's own tear-down joins threads that only the zygote has, and crashes.
//!
//! Node gets to its tear-down on three ways, and each has a hook in front: `process.reallyExit` (replaced by
//! `zygote.cjs`), the end of the event loop (an environment cleanup hook of N-API), and an error that nobody handles, once
//! Node has printed it (`node::AtExit`, which all supported versions export).

use std::{
    ffi::{CStr, c_int, c_void},
    mem,
    sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed},
};

use crate::{napi, serve::flush_streams, sys};

/// No status is known; real ones are those of `process.exitCode`.
const UNKNOWN: i32 = i32::MIN;

/// The status that `process.on('exit')` ended with.
static INTENDED: AtomicI32 = AtomicI32::new(UNKNOWN);

/// Whether the hook is there; a fork of a fork has them already.
static GUARDED: AtomicBool = AtomicBool::new(false);

type Callback = unsafe extern "C" fn(*mut c_void);
type Current = unsafe extern "C" fn() -> *mut c_void;
type Of = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Register = unsafe extern "C" fn(*mut c_void, Callback, *mut c_void);

/// The functions of Node and V8 that lead to `node::AtExit`.
pub(crate) struct AtExit {
    isolate: Current,
    context: Of,
    environment: Of,
    register: Register,
}

impl AtExit {
    /// Finds them; `None` on a Node that does not export them, which then can't be a zygote.
    pub(crate) fn find() -> Option<Self> {
        // SAFETY: the types are those of these functions in Node 20 to 26: `v8::Isolate::GetCurrent()`,
        // `v8::Isolate::GetCurrentContext()`, `node::GetCurrentEnvironment(v8::Local<v8::Context>)` and
        // `node::AtExit(node::Environment*, void (*)(void*), void*)`. A `Local` is one pointer, passed as such.
        unsafe {
            Some(Self {
                isolate: mem::transmute::<*mut c_void, Current>(symbol(c"_ZN2v87Isolate10GetCurrentEv")?),
                context: mem::transmute::<*mut c_void, Of>(symbol(c"_ZN2v87Isolate17GetCurrentContextEv")?),
                environment: mem::transmute::<*mut c_void, Of>(symbol(
                    c"_ZN4node21GetCurrentEnvironmentEN2v85LocalINS0_7ContextEEE",
                )?),
                register: mem::transmute::<*mut c_void, Register>(symbol(
                    c"_ZN4node6AtExitEPNS_11EnvironmentEPFvPvES2_",
                )?),
            })
        }
    }

    /// # Safety
    /// Only within a call from JavaScript.
    unsafe fn register(&self, callback: Callback) {
        // SAFETY: within a call from JavaScript there is an isolate, a context, and Node's environment in it.
        unsafe {
            let environment = (self.environment)((self.context)((self.isolate)()));
            (self.register)(environment, callback, std::ptr::null_mut());
        }
    }
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: reads the name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Puts the hook in front of the tear-down. Only in a forked child, within a call from JavaScript.
pub(crate) fn guard(env: napi::Env) {
    INTENDED.store(UNKNOWN, Relaxed);
    if GUARDED.swap(true, Relaxed) {
        return;
    }
    // SAFETY: `env` is that of the call; the callback takes no argument.
    unsafe { napi::napi_add_env_cleanup_hook(env, drained, std::ptr::null_mut()) };
}

/// An error was not handled: once Node has printed it, the process ends. Only within a call from JavaScript.
///
/// Not registered any earlier: Node calls these callbacks also before a process signals itself, and each but once.
pub(crate) fn doom() {
    if let Some(at_exit) = AtExit::find() {
        // SAFETY: as the caller promises.
        unsafe { at_exit.register(failed) };
    }
}

/// The status that the process means to end with.
pub(crate) fn intend(status: c_int) {
    INTENDED.store(status, Relaxed);
}

/// Ends the process with this status.
pub(crate) fn leave(status: c_int) -> ! {
    flush_streams();
    sys::end(status)
}

fn intended_or(status: c_int) -> c_int {
    match INTENDED.load(Relaxed) {
        UNKNOWN => status,
        intended => intended,
    }
}

/// The event loop is empty.
unsafe extern "C" fn drained(_: *mut c_void) {
    leave(intended_or(0))
}

/// An error was not handled, and is printed.
unsafe extern "C" fn failed(_: *mut c_void) {
    leave(intended_or(1))
}
