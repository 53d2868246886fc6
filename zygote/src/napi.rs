//! What JavaScript sees of this library, on the few functions of N-API that it takes.
//!
//! `serve(fd, ready)`, `tryFork(trial)`, `scout()`, `report(fd)`, `refuse(fd, why)`, `intend(status)`, `doom()`, `leave(status)`, `random()`, `handles()`,
//! `watch()`, `unwatch()`, `drawn()`, `variables()`, `posted()`, `programs()`; what they are for stands with `zygote.cjs`, their only caller.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    os::fd::{FromRawFd, IntoRawFd, OwnedFd},
    ptr,
};

use crate::{
    exit::{self, AtExit},
    platform, reads,
    serve::{self, Refusal, Role, Scouted},
    sys,
    wire::MAX_PAYLOAD_BYTES,
};

pub(crate) type Env = *mut c_void;
pub(crate) type Value = *mut c_void;
pub(crate) type Register = unsafe extern "C" fn(Env, Value) -> Value;
type Function = unsafe extern "C" fn(Env, *mut c_void) -> Value;

// Node's own (node_api.h, uv.h). All give 0 for success.
unsafe extern "C" {
    pub(crate) fn napi_add_env_cleanup_hook(
        env: Env,
        hook: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> c_int;
    fn napi_call_function(
        env: Env,
        this: Value,
        function: Value,
        count: usize,
        arguments: *const Value,
        result: *mut Value,
    ) -> c_int;
    fn napi_create_double(env: Env, value: f64, result: *mut Value) -> c_int;
    fn napi_create_function(
        env: Env,
        name: *const c_char,
        length: usize,
        function: Function,
        data: *mut c_void,
        result: *mut Value,
    ) -> c_int;
    fn napi_create_object(env: Env, result: *mut Value) -> c_int;
    fn napi_create_string_utf8(env: Env, text: *const c_char, length: usize, result: *mut Value) -> c_int;
    fn napi_get_boolean(env: Env, value: bool, result: *mut Value) -> c_int;
    fn napi_get_cb_info(
        env: Env,
        info: *mut c_void,
        count: *mut usize,
        arguments: *mut Value,
        this: *mut Value,
        data: *mut *mut c_void,
    ) -> c_int;
    fn napi_get_undefined(env: Env, result: *mut Value) -> c_int;
    fn napi_get_uv_event_loop(env: Env, result: *mut *mut c_void) -> c_int;
    fn napi_get_value_int32(env: Env, value: Value, result: *mut i32) -> c_int;
    fn napi_get_value_string_utf8(
        env: Env,
        value: Value,
        text: *mut c_char,
        size: usize,
        length: *mut usize,
    ) -> c_int;
    fn napi_create_array_with_length(env: Env, length: usize, result: *mut Value) -> c_int;
    fn napi_set_element(env: Env, object: Value, index: u32, value: Value) -> c_int;
    fn napi_set_named_property(env: Env, object: Value, name: *const c_char, value: Value) -> c_int;
    fn napi_throw_error(env: Env, code: *const c_char, message: *const c_char) -> c_int;
    fn uv_is_active(handle: *const c_void) -> c_int;
    fn uv_loop_fork(event_loop: *mut c_void) -> c_int;
    fn uv_walk(
        event_loop: *mut c_void,
        visit: unsafe extern "C" fn(*mut c_void, *mut c_void),
        argument: *mut c_void,
    );
}

/// A call from JavaScript: its environment and its two first arguments.
struct Call {
    env: Env,
    arguments: [Value; 2],
}

impl Call {
    /// # Safety
    /// With what N-API gave to the function that is being called.
    unsafe fn new(env: Env, info: *mut c_void) -> Self {
        let (mut count, mut arguments) = (2, [ptr::null_mut(); 2]);
        // SAFETY: fills at most `count` arguments, missing ones with `undefined`.
        unsafe {
            napi_get_cb_info(
                env,
                info,
                &raw mut count,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
                ptr::null_mut(),
            );
        }
        Self { env, arguments }
    }

    fn undefined(&self) -> Value {
        let mut value = ptr::null_mut();
        // SAFETY: `env` is that of the running call, as in all below.
        unsafe { napi_get_undefined(self.env, &raw mut value) };
        value
    }

    /// An argument; 0 if it is no number.
    fn number(&self, index: usize) -> i32 {
        let mut number = 0;
        // SAFETY: as above.
        unsafe { napi_get_value_int32(self.env, self.arguments[index], &raw mut number) };
        number
    }

    /// An argument, cut to what a message can carry; empty if it is no text.
    fn text(&self, index: usize) -> Vec<u8> {
        let mut text = vec![0_u8; MAX_PAYLOAD_BYTES + 1];
        let mut length = 0;
        // SAFETY: writes at most the given size, with a final zero that `length` does not count.
        unsafe {
            let (at, size) = (text.as_mut_ptr().cast(), text.len());
            napi_get_value_string_utf8(self.env, self.arguments[index], at, size, &raw mut length);
        }
        text.truncate(length);
        text
    }

    fn throw(&self, message: &str) -> Value {
        let text = format!("{message}\0");
        // SAFETY: the text ends by a zero.
        unsafe { napi_throw_error(self.env, ptr::null(), text.as_ptr().cast()) };
        self.undefined()
    }

    fn string(&self, text: &[u8]) -> Value {
        let mut value = ptr::null_mut();
        // SAFETY: reads as many bytes as the slice has.
        unsafe { napi_create_string_utf8(self.env, text.as_ptr().cast(), text.len(), &raw mut value) };
        value
    }

    fn boolean(&self, truth: bool) -> Value {
        let mut value = ptr::null_mut();
        // SAFETY: as above.
        unsafe { napi_get_boolean(self.env, truth, &raw mut value) };
        value
    }

    fn double(&self, number: f64) -> Value {
        let mut value = ptr::null_mut();
        // SAFETY: as above.
        unsafe { napi_create_double(self.env, number, &raw mut value) };
        value
    }

    fn list<const LENGTH: usize>(&self, values: [Value; LENGTH]) -> Value {
        let mut list = ptr::null_mut();
        // SAFETY: as above.
        unsafe { napi_create_array_with_length(self.env, LENGTH, &raw mut list) };
        for (index, value) in (0..).zip(values) {
            // SAFETY: as above.
            unsafe { napi_set_element(self.env, list, index, value) };
        }
        list
    }

    fn set(&self, object: Value, name: &CStr, value: Value) {
        // SAFETY: as above.
        unsafe { napi_set_named_property(self.env, object, name.as_ptr(), value) };
    }

    fn event_loop(&self) -> *mut c_void {
        let mut found = ptr::null_mut();
        // SAFETY: as above.
        unsafe { napi_get_uv_event_loop(self.env, &raw mut found) };
        found
    }

    fn refused(&self, refusal: &Refusal) -> Value {
        match refusal {
            Refusal::Io(error) => self.throw(&format!("this process can't be a zygote: {error}")),
            Refusal::Trial(status) => self.throw(&format!(
                "this process can't be a zygote: a child forked on trial ended with wait status {status:#x}"
            )),
        }
    }
}

/// `serve(fd, ready)`: serves on the control socket `fd` after sending `ready`. Returns in children only:
/// `[role, payload, warm, seed, pid]`: of an object V8 would make a hidden class for each property, in each child.
unsafe extern "C" fn serve(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    if AtExit::find().is_none() {
        return call
            .throw("this Node does not export node::AtExit, without which a forked child can't end cleanly");
    }
    let event_loop = call.event_loop();
    // SAFETY: the loop is the environment's, and this is the child's only thread.
    let restart = || unsafe { uv_loop_fork(event_loop) } == 0;
    let role = match serve::run(call.number(0), call.text(1), restart) {
        Ok(role) => role,
        Err(refusal) => return call.refused(&refusal),
    };
    exit::guard(env);
    let Ok(seed) = sys::random::<4>() else { return call.throw("the kernel gives no random bytes") };
    // V8 takes a positive 32-bit number; 0 would mean "choose one", which has happened.
    let seed = (i32::from_le_bytes(seed) & i32::MAX).max(1);
    let (name, payload, warm) = match role {
        Role::Worker { warm, .. } => ("worker", Vec::new(), warm),
        Role::Zygote { payload, .. } => ("zygote", payload, false),
    };
    call.list([
        call.string(name.as_bytes()),
        call.string(&payload),
        call.boolean(warm),
        call.double(f64::from(seed)),
        call.double(f64::from(std::process::id())),
    ])
}

/// `tryFork(trial)`: throws unless a forked child can run the function `trial` and then come to the end of its event
/// loop. Gives whether this is that child, which must then do nothing more.
///
/// The end counts: Node waits there for all tasks that V8 gave to worker threads, which a child does not have, so a V8
/// that gives any is found out here.
unsafe extern "C" fn try_fork(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    match serve::try_fork() {
        Ok(true) => {}
        Ok(false) => return call.boolean(false),
        Err(refusal) => return call.refused(&refusal),
    }
    exit::guard(env);
    let (this, mut result) = (call.undefined(), ptr::null_mut());
    // SAFETY: the loop is the environment's, in the child's only thread; no arguments are passed to the function.
    let failed = unsafe {
        uv_loop_fork(call.event_loop()) != 0
            || napi_call_function(env, this, call.arguments[0], 0, ptr::null(), &raw mut result) != 0
    };
    if failed {
        sys::end(serve::CANNOT_START_STATUS);
    }
    call.boolean(true)
}

/// `scout()`: forks a child that is to go the way of a job and then [report]. Gives `{ fd }`, the descriptor to report to, in that
/// child, and `{ pages }`, how many it reported, here once it has ended: none if it failed.
unsafe extern "C" fn scout(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    let mut object = ptr::null_mut();
    // SAFETY: as above.
    unsafe { napi_create_object(env, &raw mut object) };
    let pipe = match serve::scout() {
        Ok(Scouted::Scout(pipe)) => pipe,
        Ok(Scouted::Zygote { pages }) => {
            #[expect(clippy::cast_precision_loss, reason = "as many as a process has")]
            call.set(object, c"pages", call.double(pages as f64));
            return object;
        }
        Err(error) => return call.refused(&error.into()),
    };
    exit::guard(env);
    // SAFETY: the loop is the environment's, in the child's only thread.
    if unsafe { uv_loop_fork(call.event_loop()) } != 0 {
        sys::end(serve::CANNOT_START_STATUS);
    }
    call.set(object, c"fd", call.double(f64::from(pipe.into_raw_fd())));
    object
}

/// `report(fd)`: in a scout, tells the zygote which pages it made its own, and ends.
unsafe extern "C" fn report(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    // SAFETY: the script passes on what `scout` gave it, and only once.
    serve::report(unsafe { OwnedFd::from_raw_fd(call.number(0)) })
}

/// `refuse(fd, why)`: tells the host and ends the process.
unsafe extern "C" fn refuse(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    serve::refuse(call.number(0), call.text(1))
}

/// `intend(status)`: the status to end with when Node ends by itself.
unsafe extern "C" fn intend(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    exit::intend(call.number(0));
    call.undefined()
}

/// `doom()`: Node is about to print an error that nobody handles; then the process ends.
unsafe extern "C" fn doom(env: Env, info: *mut c_void) -> Value {
    exit::doom();
    // SAFETY: called by N-API.
    unsafe { Call::new(env, info) }.undefined()
}

/// `leave(status)`: ends the process.
unsafe extern "C" fn leave(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    exit::leave(call.number(0))
}

/// `random()`: a number in [0, 1) from the kernel.
unsafe extern "C" fn random(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    let Ok(bytes) = sys::random::<8>() else {
        return call.throw("the kernel gives no random bytes");
    };
    // As many bits as a double's fraction holds.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit exactly")]
    let fraction = (u64::from_le_bytes(bytes) >> 11) as f64 / (1_u64 << 53) as f64;
    call.double(fraction)
}

/// `handles()`: how many handles of the event loop are active, those that do not keep it alive included.
unsafe extern "C" fn handles(env: Env, info: *mut c_void) -> Value {
    unsafe extern "C" fn count(handle: *mut c_void, sum: *mut c_void) {
        // SAFETY: libuv passes a handle, and the argument of `uv_walk`.
        unsafe { *sum.cast::<u32>() += u32::from(uv_is_active(handle) != 0) };
    }
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    let mut sum = 0_u32;
    // SAFETY: the loop is the environment's; `sum` outlives the walk.
    unsafe { uv_walk(call.event_loop(), count, (&raw mut sum).cast()) };
    call.double(f64::from(sum))
}

/// `watch()`: notices from now on what is drawn, see `reads.rs`. Gives whether all of it is seen.
unsafe extern "C" fn watch(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    call.boolean(reads::watch() && platform::sees_clock())
}

/// `unwatch()`: no longer.
unsafe extern "C" fn unwatch(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    reads::unwatch();
    call.undefined()
}

/// `drawn()`: what was, in words, `undefined` for nothing; begins anew.
unsafe extern "C" fn drawn(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    reads::take().map_or_else(|| call.undefined(), |text| call.string(text.as_bytes()))
}

/// `variables()`: names of the variables that addons have read while they were watched, each followed by a zero byte.
unsafe extern "C" fn variables(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    call.string(&reads::variables())
}

/// `posted()`: how many tasks V8 gave to worker threads; whether it should give any: `[count, isThreadless]`.
unsafe extern "C" fn posted(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    let count = u32::try_from(platform::posted()).unwrap_or(u32::MAX);
    call.list([call.double(f64::from(count)), call.boolean(platform::is_threadless())])
}

/// `programs()`: a number that differs once a program has run and ended below this process.
unsafe extern "C" fn programs(env: Env, info: *mut c_void) -> Value {
    // SAFETY: called by N-API.
    let call = unsafe { Call::new(env, info) };
    call.double(sys::faults_of_children())
}

/// Puts the functions into an object.
///
/// # Safety
/// With what N-API gives to who registers a module.
pub(crate) unsafe fn fill(env: Env, exports: Value) -> Value {
    let functions: [(&CStr, Function); 16] = [
        (c"serve", serve),
        (c"tryFork", try_fork),
        (c"scout", scout),
        (c"report", report),
        (c"refuse", refuse),
        (c"intend", intend),
        (c"doom", doom),
        (c"leave", leave),
        (c"random", random),
        (c"handles", handles),
        (c"watch", watch),
        (c"unwatch", unwatch),
        (c"drawn", drawn),
        (c"variables", variables),
        (c"posted", posted),
        (c"programs", programs),
    ];
    for (name, function) in functions {
        let mut value = ptr::null_mut();
        // SAFETY: the names are static, the functions take no data.
        unsafe {
            napi_create_function(env, name.as_ptr(), usize::MAX, function, ptr::null_mut(), &raw mut value);
            napi_set_named_property(env, exports, name.as_ptr(), value);
        }
    }
    exports
}
