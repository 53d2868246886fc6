//! What happens when the library is loaded: by `LD_PRELOAD` before `main`, or, where that is not to be had, by `process.dlopen`.

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use crate::{napi, platform};

/// The name by which `zygote.cjs` finds what the library offers.
const NAME: &CStr = c"native_sandbox_zygote";

/// `napi_module` of `node_api.h`.
#[repr(C)]
struct Module {
    version: c_int,
    flags: c_uint,
    filename: *const c_char,
    register: napi::Register,
    name: *const c_char,
    private: *mut c_void,
    reserved: [*mut c_void; 4],
}

type RegisterModule = unsafe extern "C" fn(*mut Module);

/// Node hands out what the library offers once; see [`hand_out`].
static IS_GIVEN: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    // SAFETY: before `main`, there is no other thread; loaded later, nothing is set. What a tool starts is not to load this library.
    unsafe { libc::unsetenv(c"LD_PRELOAD".as_ptr()) };
    if !is_told() {
        return;
    }
    platform::patch();
    register();
}

/// Whether this program was started with the path of this very library as an argument, as zygotes are. Its children have the same
/// arguments, but the library is loaded in them already. So a copy of it that a tool brings, or a program of a tool's, gets nothing.
fn is_told() -> bool {
    // SAFETY: fills the local; the path belongs to the dynamic linker.
    let path = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let address = (&raw const LOADED).cast();
        if libc::dladdr(address, &raw mut info) == 0 || info.dli_fname.is_null() {
            return false;
        }
        CStr::from_ptr(info.dli_fname).to_bytes()
    };
    let arguments = fs::read("/proc/self/cmdline").unwrap_or_default();
    arguments.split(|byte| *byte == 0).any(|argument| argument == path)
}

/// Tells Node of the module. It has no symbol to be found by: addons that look for their own `napi_register_module_v1` through the
/// symbols of the process would find this library's. Before `main` Node takes it for one that is linked in (`process._linkedBinding`),
/// later for the one that is just being loaded.
fn register() {
    // SAFETY: the function's type is that of node_api.h; the module lives as long as the process.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"napi_module_register".as_ptr());
        if found.is_null() {
            return;
        }
        let module = Module {
            version: 1,
            flags: 0,
            filename: NAME.as_ptr(),
            register: hand_out,
            name: NAME.as_ptr(),
            private: std::ptr::null_mut(),
            reserved: [std::ptr::null_mut(); 4],
        };
        let register = std::mem::transmute::<*mut c_void, RegisterModule>(found);
        register(Box::leak(Box::new(module)));
    }
}

/// The first who asks is `zygote.cjs`, before anything of others runs. Whoever asks later gets an empty object.
unsafe extern "C" fn hand_out(env: napi::Env, exports: napi::Value) -> napi::Value {
    if IS_GIVEN.swap(true, Relaxed) {
        return exports;
    }
    // SAFETY: called by N-API.
    unsafe { napi::fill(env, exports) }
}
