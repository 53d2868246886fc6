//! Where this library lies: its launcher lies beside it.

use std::path::PathBuf;

/// Path of the file that this code was loaded from: the addon, or a test's executable.
#[cfg(unix)]
pub(crate) fn own_library() -> PathBuf {
    use std::{ffi::CStr, os::unix::ffi::OsStrExt as _};

    // SAFETY: Dl_info is plain data that may be all zero; dladdr(3) fills it for any address of this process.
    let name = unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let found = libc::dladdr(own_library as *const libc::c_void, &raw mut info);
        if found == 0 || info.dli_fname.is_null() {
            return std::env::current_exe().unwrap_or_default();
        }
        CStr::from_ptr(info.dli_fname)
    };
    PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes()))
}
