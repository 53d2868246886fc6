//! Notices what a package takes from the system while it is loaded, and every call would then have alike: random bytes, the time, what
//! stands in the working folder, and variables.
//!
//! JavaScript's own doors are watched by `zygote.cjs`. Here are those below them, which see copies of functions, other realms and
//! native addons too: OpenSSL's generator (all of `node:crypto` and Web Crypto), V8's clock (`platform.rs`), and the functions of
//! the C library by which addons draw. Loaded by `LD_PRELOAD`, this library answers for these; they forward, and while no
//! package is being loaded, that is all they do.

use std::{
    collections::BTreeSet,
    ffi::{CStr, c_char, c_int, c_long, c_uint, c_void},
    mem,
    sync::{
        Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU32, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use crate::imports::imports_pid;

/// Ways to take what differs from call to call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Door {
    /// OpenSSL's generator.
    Crypto = 1,
    /// The system's generator.
    System,
    /// A device or a file of random bytes.
    Device,
    /// What `/proc` says about processes and load.
    Proc,
    /// The time of day.
    Clock,
    /// The number of the process, as `import { pid } from 'node:process'` binds it.
    Pid,
    /// The working folder, or what is found from there.
    Folder,
}

impl Door {
    const ALL: [Self; 7] =
        [Self::Crypto, Self::System, Self::Device, Self::Proc, Self::Clock, Self::Pid, Self::Folder];

    fn says(self) -> &'static str {
        match self {
            Self::Crypto => "it draws random bytes (crypto) when it is loaded",
            Self::System => "it draws random bytes from the system when it is loaded",
            Self::Device => "it reads random bytes from a file when it is loaded",
            Self::Proc => "it reads about processes in /proc when it is loaded",
            Self::Clock => "it reads the time of day when it is loaded",
            Self::Pid => "it imports process.pid when it is loaded",
            Self::Folder => "it reads the working folder when it is loaded",
        }
    }
}

static IS_WATCHING: AtomicBool = AtomicBool::new(false);
/// The first door that was used, 0 for none; and from where.
static DOOR: AtomicU32 = AtomicU32::new(0);
static CALLER: AtomicUsize = AtomicUsize::new(0);

/// Notes that a door was used; `caller` is an address in who did it, 0 for Node.
pub(crate) fn note(door: Door, caller: usize) {
    if IS_WATCHING.load(Relaxed) && DOOR.compare_exchange(0, door as u32, Acquire, Relaxed).is_ok() {
        CALLER.store(caller, Release);
    }
}

/// Begins to watch, or goes on. Gives whether every door is seen.
pub(crate) fn watch() -> bool {
    IS_WATCHING.store(true, Relaxed);
    openssl::watch() && is_first()
}

/// Whether the process comes here for these functions: not where this library could not be preloaded.
#[cfg(not(test))]
fn is_first() -> bool {
    // SAFETY: reads the name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getrandom".as_ptr()) };
    std::ptr::eq(found, exports::getrandom as *const c_void)
}

#[cfg(test)]
fn is_first() -> bool {
    false
}

/// Stops watching.
pub(crate) fn unwatch() {
    IS_WATCHING.store(false, Relaxed);
    openssl::unwatch();
}

/// What was done since the last time this was asked, in words.
pub(crate) fn take() -> Option<String> {
    let number = DOOR.load(Acquire);
    let door = Door::ALL.into_iter().find(|door| *door as u32 == number)?;
    let caller = CALLER.swap(0, Relaxed);
    DOOR.store(0, Release);
    let object = object_of(caller);
    Some(object.map_or_else(|| door.says().to_owned(), |object| format!("{} ({object})", door.says())))
}

/// Variables that addons have read while they were loaded.
static VARIABLES: Mutex<BTreeSet<Vec<u8>>> = Mutex::new(BTreeSet::new());
/// Upper bound of their number. With more, the last one is [`EVERY_VARIABLE`].
const MAX_VARIABLES: usize = 256;
/// Stands for all of them.
const EVERY_VARIABLE: &[u8] = b"*";

/// Notes that a variable was read.
fn note_variable(name: &[u8]) {
    let mut known = VARIABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let name = if known.len() < MAX_VARIABLES { name } else { EVERY_VARIABLE };
    known.insert(name.to_owned());
}

/// The variables that addons have read while they were loaded, each followed by a zero byte.
pub(crate) fn variables() -> Vec<u8> {
    let known = VARIABLES.lock().unwrap_or_else(PoisonError::into_inner);
    known.iter().flat_map(|name| name.iter().chain(&[0])).copied().collect()
}

/// What a path leads by, that each call has another of: one that is not absolute leads by the working folder.
fn door_of_path(path: &[u8]) -> Option<Door> {
    path.first().is_some_and(|first| *first != b'/').then_some(Door::Folder)
}

/// The same of a link or folder, which is looked at without being opened here: those of processes are told by their path.
fn door_of_place(path: &[u8]) -> Option<Door> {
    let Some(below) = path.strip_prefix(b"/proc") else { return door_of_path(path) };
    let mut names = below.split(|byte| *byte == b'/');
    if names.next().is_some_and(|rest| !rest.is_empty()) {
        // Of another folder, whose name begins alike.
        return None;
    }
    match names.find(|name| !name.is_empty()) {
        Some(b"self" | b"thread-self") => {}
        Some(first) if first.iter().all(u8::is_ascii_digit) => {}
        // The list of all processes.
        None => return Some(Door::Proc),
        Some(_) => return None,
    }
    // That of a zygote is its workers' too.
    (!below.ends_with(b"/exe")).then_some(Door::Proc)
}

/// The name of the program or library that an address is in.
fn object_of(address: usize) -> Option<String> {
    if address == 0 {
        return None;
    }
    // SAFETY: fills the local; the name it points to belongs to the dynamic linker.
    unsafe {
        let mut info: libc::Dl_info = mem::zeroed();
        if libc::dladdr(address as *const c_void, &raw mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let path = CStr::from_ptr(info.dli_fname).to_string_lossy();
        path.rsplit('/').next().filter(|name| !name.is_empty()).map(str::to_owned)
    }
}

/// Whether an address is in Node itself: its own doors are watched above.
fn is_nodes(address: usize) -> bool {
    // SAFETY: fills the locals; `getauxval` gives the address of the program's header table.
    unsafe {
        let (mut info, mut program): (libc::Dl_info, libc::Dl_info) = (mem::zeroed(), mem::zeroed());
        let entry = libc::getauxval(libc::AT_PHDR);
        libc::dladdr(address as *const c_void, &raw mut info) != 0
            && libc::dladdr(
                std::ptr::with_exposed_provenance(usize::try_from(entry).unwrap_or(0)),
                &raw mut program,
            ) != 0
            && info.dli_fbase == program.dli_fbase
    }
}

/// A function that this library answers for, and where the next definition of it is, behind this library's.
struct Next {
    name: &'static CStr,
    known: AtomicUsize,
}

impl Next {
    const fn of(name: &'static CStr) -> Self {
        Self { name, known: AtomicUsize::new(0) }
    }

    /// Found once, and kept; 0 where there is none.
    fn address(&self) -> usize {
        match self.known.load(Relaxed) {
            0 => {
                // SAFETY: reads the name.
                let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
                self.known.store(found, Relaxed);
                found
            }
            found => found,
        }
    }
}

/// The functions that calls are passed on to.
mod nexts {
    use super::Next;

    macro_rules! nexts {
        ($($next:ident = $name:literal;)*) => {
            $(pub(super) static $next: Next = Next::of($name);)*
            pub(super) static ALL: &[&Next] = &[$(&$next),*];
        };
    }

    nexts! {
        GETRANDOM = c"getrandom";
        GETENTROPY = c"getentropy";
        OPEN = c"open";
        OPEN64 = c"open64";
        OPENAT = c"openat";
        OPENAT64 = c"openat64";
        FOPEN = c"fopen";
        FOPEN64 = c"fopen64";
        TIME = c"time";
        GETTIMEOFDAY = c"gettimeofday";
        CLOCK_GETTIME = c"clock_gettime";
        SYSCALL = c"syscall";
        ACCESS = c"access";
        STATX = c"statx";
        READLINK = c"readlink";
        REALPATH = c"realpath";
        GETCWD = c"getcwd";
        OPENDIR = c"opendir";
        SCANDIR = c"scandir";
        SCANDIR64 = c"scandir64";
        GETENV = c"getenv";
    }
}

/// Finds all of them: what a process has not looked up when it forks, each child looks up for itself, in pages of every library.
pub(crate) fn look_up() {
    for next in nexts::ALL {
        next.address();
    }
}

/// OpenSSL's generator, as Node has it: its functions are in the program's dynamic symbol table.
mod openssl {
    use super::{AtomicBool, CStr, Door, Relaxed, c_int, c_long, c_void, mem, note};

    /// `RAND_METHOD`.
    #[repr(C)]
    struct Method {
        seed: Option<unsafe extern "C" fn(*const c_void, c_int) -> c_int>,
        bytes: Option<unsafe extern "C" fn(*mut u8, c_int) -> c_int>,
        cleanup: Option<unsafe extern "C" fn()>,
        add: Option<unsafe extern "C" fn(*const c_void, c_int, f64) -> c_int>,
        pseudorand: Option<unsafe extern "C" fn(*mut u8, c_int) -> c_int>,
        status: Option<unsafe extern "C" fn() -> c_int>,
    }

    static COUNTING: Method = Method {
        seed: None,
        bytes: Some(bytes),
        cleanup: None,
        add: None,
        pseudorand: Some(bytes),
        status: Some(status),
    };

    static IS_SET: AtomicBool = AtomicBool::new(false);

    type Set = unsafe extern "C" fn(*const c_void) -> c_int;

    /// `RAND_set_rand_method`; none where Node does not show it.
    fn setter() -> Option<Set> {
        let name: &CStr = c"RAND_set_rand_method";
        // SAFETY: reads the name; the type is that of this function in OpenSSL 1.1 and 3.
        unsafe {
            let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
            (!found.is_null()).then(|| mem::transmute::<*mut c_void, Set>(found))
        }
    }

    pub(super) fn watch() -> bool {
        let Some(set) = setter() else { return false };
        if !IS_SET.swap(true, Relaxed) {
            // SAFETY: the method is a static; OpenSSL asks for it at each draw.
            unsafe { set((&raw const COUNTING).cast()) };
        }
        true
    }

    pub(super) fn unwatch() {
        if IS_SET.swap(false, Relaxed)
            && let Some(set) = setter()
        {
            // SAFETY: null means OpenSSL's own.
            unsafe { set(std::ptr::null()) };
        }
    }

    /// Of the kernel, so that nothing of OpenSSL's own generator is used.
    unsafe extern "C" fn bytes(at: *mut u8, count: c_int) -> c_int {
        note(Door::Crypto, 0);
        let count = usize::try_from(count).unwrap_or(0);
        let mut filled = 0;
        while filled < count {
            // SAFETY: the caller has room for `count` bytes.
            let got =
                unsafe { libc::syscall(libc::SYS_getrandom, at.add(filled), count - filled, 0 as c_long) };
            match usize::try_from(got) {
                Ok(got) => filled += got,
                Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return 0,
            }
        }
        1
    }

    unsafe extern "C" fn status() -> c_int {
        1
    }
}

/// Looks at a descriptor that was just opened.
fn note_opened(fd: c_int, caller: usize) {
    const MEMORY_DEVICES: c_uint = 1;
    const RANDOM: [c_uint; 2] = [8, 9];
    if fd < 0 || !IS_WATCHING.load(Relaxed) {
        return;
    }
    // SAFETY: fill locals, and write no more than the path's size.
    unsafe {
        // The caller may look at what `open` left in there.
        let errno = *libc::__errno_location();
        let mut stat: libc::stat = mem::zeroed();
        if libc::fstat(fd, &raw mut stat) == 0 {
            let (major, minor) = (libc::major(stat.st_rdev), libc::minor(stat.st_rdev));
            let is_device = stat.st_mode & libc::S_IFMT == libc::S_IFCHR;
            if is_device && major == MEMORY_DEVICES && RANDOM.contains(&minor) {
                note(Door::Device, caller);
            }
            let mut system: libc::statfs = mem::zeroed();
            if libc::fstatfs(fd, &raw mut system) == 0 && system.f_type == libc::PROC_SUPER_MAGIC {
                let mut path = [0_u8; 128];
                if let Some(door) = door_in_proc(path_of(fd, &mut path)) {
                    note(door, caller);
                }
            } else if stat.st_mode & libc::S_IFMT == libc::S_IFREG && reads_pid(fd) {
                note(Door::Pid, 0);
            }
        }
        *libc::__errno_location() = errno;
    }
}

/// Where an open descriptor leads, as far as there is room; empty where that cannot be told.
fn path_of(fd: c_int, room: &mut [u8]) -> &[u8] {
    let link = format!("/proc/self/fd/{fd}\0");
    // By number: the function of that name is answered for by this library, which would note it.
    // SAFETY: reads the text, which ends by a zero, and writes no more than the size of the room.
    let length = unsafe {
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), room.as_mut_ptr(), room.len())
    };
    room.get(..usize::try_from(length).unwrap_or(0)).unwrap_or_default()
}

/// Looks at a path that is about to be used; `door` tells what it leads by.
///
/// # Safety
/// With null, or a text that ends by a zero.
#[cfg_attr(test, allow(dead_code, reason = "only the exports call it, which tests are built without"))]
unsafe fn note_path(path: *const c_char, caller: usize, door: impl FnOnce(&[u8]) -> Option<Door>) {
    if path.is_null() || !IS_WATCHING.load(Relaxed) {
        return;
    }
    // SAFETY: as above.
    if let Some(door) = door(unsafe { CStr::from_ptr(path) }.to_bytes()) {
        note(door, caller);
    }
}

/// Upper bound of the text that is looked at. Of a larger one the worst is assumed.
const MODULE_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// Whether a file that was just opened is a module whose text binds the number of the process.
///
/// # Safety
/// With an open descriptor; its offset stays.
unsafe fn reads_pid(fd: c_int) -> bool {
    const ENDS: [&[u8]; 4] = [b".js", b".mjs", b".ts", b".mts"];
    let mut path = [0_u8; 4096];
    let path = path_of(fd, &mut path);
    if !ENDS.iter().any(|end| path.ends_with(end)) {
        return false;
    }
    let mut text = Vec::new();
    let mut part = [0_u8; 16 * 1024];
    while text.len() <= MODULE_LIMIT_BYTES {
        let at = i64::try_from(text.len()).unwrap_or(i64::MAX);
        // SAFETY: writes no more than the part's size.
        let count = unsafe { libc::pread64(fd, part.as_mut_ptr().cast(), part.len(), at) };
        match usize::try_from(count) {
            Ok(count) if count > 0 => text.extend_from_slice(part.get(..count).unwrap_or_default()),
            _ => break,
        }
    }
    text.len() > MODULE_LIMIT_BYTES || imports_pid(&text)
}

/// What a file of `/proc` is, that says something else in each process or at each time.
fn door_in_proc(path: &[u8]) -> Option<Door> {
    const CHANGING: [&[u8]; 8] =
        [b"uptime", b"loadavg", b"stat", b"meminfo", b"vmstat", b"diskstats", b"interrupts", b"net/"];
    // Where a link cannot be read, or leads elsewhere, the worst is assumed.
    let Some(name) = path.strip_prefix(b"/proc/") else { return Some(Door::Proc) };
    if name.starts_with(b"sys/kernel/random/") {
        return Some(Door::Device);
    }
    // Those of a zygote are its workers' too.
    let is_of_mounts = name.ends_with(b"/mountinfo") || name.ends_with(b"/mounts");
    let is_process = name.first().is_some_and(u8::is_ascii_digit) && !is_of_mounts;
    (is_process || CHANGING.iter().any(|file| name.starts_with(file))).then_some(Door::Proc)
}

// ---- functions of the C library -----------------------------------------------------------------------------------------

/// Those that this library answers for. Each passes the address that it was called from on to a function of [`answers`], as one more
/// argument; a variadic one is called like one with all its arguments.
#[cfg(not(test))]
mod exports {
    use super::answers;

    macro_rules! answer {
        ($name:ident, $x86:literal, $arm:literal) => {
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub(super) unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(concat!("mov ", $x86, ", [rsp]"), "jmp {}", sym answers::$name);
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(concat!("mov ", $arm, ", x30"), "b {}", sym answers::$name);
            }
        };
    }

    // Behind how many arguments the address goes.
    answer!(getrandom, "rcx", "x3");
    answer!(getentropy, "rdx", "x2");
    answer!(arc4random, "rdi", "x0");
    answer!(arc4random_buf, "rdx", "x2");
    answer!(arc4random_uniform, "rsi", "x1");
    answer!(open, "rcx", "x3");
    answer!(open64, "rcx", "x3");
    answer!(openat, "r8", "x4");
    answer!(openat64, "r8", "x4");
    answer!(fopen, "rdx", "x2");
    answer!(fopen64, "rdx", "x2");
    answer!(time, "rsi", "x1");
    answer!(gettimeofday, "rdx", "x2");
    answer!(clock_gettime, "rdx", "x2");
    answer!(access, "rdx", "x2");
    answer!(readlink, "rcx", "x3");
    answer!(realpath, "rdx", "x2");
    answer!(getcwd, "rdx", "x2");
    answer!(opendir, "rsi", "x1");
    answer!(scandir, "r8", "x4");
    answer!(scandir64, "r8", "x4");
    answer!(statx, "r9", "x5");
    answer!(getenv, "rsi", "x1");
}

#[cfg(not(test))]
mod answers {
    use super::{
        CStr, Door, IS_WATCHING, Relaxed, c_char, c_int, c_long, c_uint, c_void, door_of_path, door_of_place,
        is_nodes, mem, nexts, note, note_opened, note_path, note_variable,
    };

    /// Calls the next definition of a function, of this type.
    macro_rules! forward {
        ($next:ident, fn($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
            // SAFETY: the C library's function of that name, with what it would have been called with.
            unsafe {
                let function = mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> $result>(nexts::$next.address());
                function($($argument),*)
            }
        }};
    }

    pub(super) unsafe extern "C" fn getrandom(
        at: *mut c_void,
        count: usize,
        flags: c_uint,
        caller: usize,
    ) -> isize {
        note(Door::System, caller);
        forward!(GETRANDOM, fn(*mut c_void, usize, c_uint) -> isize, at, count, flags)
    }

    pub(super) unsafe extern "C" fn getentropy(at: *mut c_void, count: usize, caller: usize) -> c_int {
        note(Door::System, caller);
        forward!(GETENTROPY, fn(*mut c_void, usize) -> c_int, at, count)
    }

    // Older C libraries lack these three; who asks for them by name finds these, so they do the work themselves.

    pub(super) unsafe extern "C" fn arc4random(caller: usize) -> u32 {
        note(Door::System, caller);
        number()
    }

    pub(super) unsafe extern "C" fn arc4random_buf(at: *mut u8, count: usize, caller: usize) {
        note(Door::System, caller);
        // SAFETY: the caller has room for `count` bytes.
        fill(unsafe { std::slice::from_raw_parts_mut(at, count) });
    }

    pub(super) unsafe extern "C" fn arc4random_uniform(bound: u32, caller: usize) -> u32 {
        note(Door::System, caller);
        if bound < 2 {
            return 0;
        }
        // What is below would make some numbers likelier than others.
        let least = bound.wrapping_neg() % bound;
        loop {
            let drawn = number();
            if drawn >= least {
                return drawn % bound;
            }
        }
    }

    fn number() -> u32 {
        let mut bytes = [0; 4];
        fill(&mut bytes);
        u32::from_ne_bytes(bytes)
    }

    /// From the kernel, which does not fail once it has begun to give any.
    fn fill(bytes: &mut [u8]) {
        let mut filled = 0;
        while filled < bytes.len() {
            let rest = &mut bytes[filled..];
            let got = forward!(
                GETRANDOM,
                fn(*mut c_void, usize, c_uint) -> isize,
                rest.as_mut_ptr().cast(),
                rest.len(),
                0
            );
            filled += usize::try_from(got).unwrap_or(0);
        }
    }

    pub(super) unsafe extern "C" fn open(
        path: *const c_char,
        flags: c_int,
        mode: c_uint,
        caller: usize,
    ) -> c_int {
        // SAFETY: the caller's path.
        unsafe { note_path(path, caller, door_of_path) };
        let fd = forward!(OPEN, fn(*const c_char, c_int, c_uint) -> c_int, path, flags, mode);
        note_opened(fd, caller);
        fd
    }

    pub(super) unsafe extern "C" fn open64(
        path: *const c_char,
        flags: c_int,
        mode: c_uint,
        caller: usize,
    ) -> c_int {
        // SAFETY: the caller's path.
        unsafe { note_path(path, caller, door_of_path) };
        let fd = forward!(OPEN64, fn(*const c_char, c_int, c_uint) -> c_int, path, flags, mode);
        note_opened(fd, caller);
        fd
    }

    pub(super) unsafe extern "C" fn openat(
        folder: c_int,
        path: *const c_char,
        flags: c_int,
        mode: c_uint,
        caller: usize,
    ) -> c_int {
        // SAFETY: the caller's path.
        unsafe { note_path_from(folder, path, caller) };
        let fd =
            forward!(OPENAT, fn(c_int, *const c_char, c_int, c_uint) -> c_int, folder, path, flags, mode);
        note_opened(fd, caller);
        fd
    }

    pub(super) unsafe extern "C" fn openat64(
        folder: c_int,
        path: *const c_char,
        flags: c_int,
        mode: c_uint,
        caller: usize,
    ) -> c_int {
        // SAFETY: the caller's path.
        unsafe { note_path_from(folder, path, caller) };
        let fd =
            forward!(OPENAT64, fn(c_int, *const c_char, c_int, c_uint) -> c_int, folder, path, flags, mode);
        note_opened(fd, caller);
        fd
    }

    pub(super) unsafe extern "C" fn fopen(
        path: *const c_char,
        mode: *const c_char,
        caller: usize,
    ) -> *mut libc::FILE {
        // SAFETY: the caller's path.
        unsafe { note_path(path, caller, door_of_path) };
        let file = forward!(FOPEN, fn(*const c_char, *const c_char) -> *mut libc::FILE, path, mode);
        note_stream(file, caller);
        file
    }

    pub(super) unsafe extern "C" fn fopen64(
        path: *const c_char,
        mode: *const c_char,
        caller: usize,
    ) -> *mut libc::FILE {
        // SAFETY: the caller's path.
        unsafe { note_path(path, caller, door_of_path) };
        let file = forward!(FOPEN64, fn(*const c_char, *const c_char) -> *mut libc::FILE, path, mode);
        note_stream(file, caller);
        file
    }

    fn note_stream(file: *mut libc::FILE, caller: usize) {
        if !file.is_null() && IS_WATCHING.load(Relaxed) {
            // SAFETY: a stream that was just opened.
            note_opened(unsafe { libc::fileno(file) }, caller);
        }
    }

    /// # Safety
    /// As [`note_path`].
    unsafe fn note_path_from(folder: c_int, path: *const c_char, caller: usize) {
        if folder == libc::AT_FDCWD {
            // SAFETY: as above.
            unsafe { note_path(path, caller, door_of_path) };
        }
    }

    pub(super) unsafe extern "C" fn access(path: *const c_char, mode: c_int, caller: usize) -> c_int {
        // SAFETY: the caller's path.
        unsafe { note_path(path, caller, door_of_path) };
        forward!(ACCESS, fn(*const c_char, c_int) -> c_int, path, mode)
    }

    pub(super) unsafe extern "C" fn statx(
        folder: c_int,
        path: *const c_char,
        flags: c_int,
        mask: c_uint,
        at: *mut c_void,
        caller: usize,
    ) -> c_int {
        // SAFETY: the caller's path.
        unsafe { note_path_from(folder, path, caller) };
        if nexts::STATX.address() == 0 {
            // An older C library; who asks for it by name finds this one.
            // SAFETY: the system call of that name, with what it would have been called with.
            let done = unsafe { libc::syscall(libc::SYS_statx, folder, path, flags, mask, at) };
            return c_int::try_from(done).unwrap_or(-1);
        }
        forward!(
            STATX,
            fn(c_int, *const c_char, c_int, c_uint, *mut c_void) -> c_int,
            folder,
            path,
            flags,
            mask,
            at
        )
    }

    pub(super) unsafe extern "C" fn readlink(
        path: *const c_char,
        at: *mut c_char,
        size: usize,
        caller: usize,
    ) -> isize {
        // SAFETY: the caller's path.
        unsafe { note_path(path, caller, door_of_place) };
        forward!(READLINK, fn(*const c_char, *mut c_char, usize) -> isize, path, at, size)
    }

    pub(super) unsafe extern "C" fn realpath(
        path: *const c_char,
        at: *mut c_char,
        caller: usize,
    ) -> *mut c_char {
        // SAFETY: the caller's path.
        unsafe { note_path(path, caller, door_of_place) };
        forward!(REALPATH, fn(*const c_char, *mut c_char) -> *mut c_char, path, at)
    }

    /// Node's own reads are watched where JavaScript asks for it.
    pub(super) unsafe extern "C" fn getcwd(at: *mut c_char, size: usize, caller: usize) -> *mut c_char {
        if IS_WATCHING.load(Relaxed) && !is_nodes(caller) {
            note(Door::Folder, caller);
        }
        forward!(GETCWD, fn(*mut c_char, usize) -> *mut c_char, at, size)
    }

    pub(super) unsafe extern "C" fn opendir(path: *const c_char, caller: usize) -> *mut libc::DIR {
        // SAFETY: the caller's path.
        unsafe { note_path(path, caller, door_of_place) };
        forward!(OPENDIR, fn(*const c_char) -> *mut libc::DIR, path)
    }

    pub(super) unsafe extern "C" fn scandir(
        path: *const c_char,
        list: *mut c_void,
        filter: *const c_void,
        compare: *const c_void,
        caller: usize,
    ) -> c_int {
        // SAFETY: the caller's path.
        unsafe { note_path(path, caller, door_of_place) };
        forward!(
            SCANDIR,
            fn(*const c_char, *mut c_void, *const c_void, *const c_void) -> c_int,
            path,
            list,
            filter,
            compare
        )
    }

    pub(super) unsafe extern "C" fn scandir64(
        path: *const c_char,
        list: *mut c_void,
        filter: *const c_void,
        compare: *const c_void,
        caller: usize,
    ) -> c_int {
        // SAFETY: the caller's path.
        unsafe { note_path(path, caller, door_of_place) };
        forward!(
            SCANDIR64,
            fn(*const c_char, *mut c_void, *const c_void, *const c_void) -> c_int,
            path,
            list,
            filter,
            compare
        )
    }

    /// Node's own reads are watched where JavaScript asks for them.
    pub(super) unsafe extern "C" fn getenv(name: *const c_char, caller: usize) -> *mut c_char {
        if IS_WATCHING.load(Relaxed) && !name.is_null() && !is_nodes(caller) {
            // SAFETY: a text that ends by a zero.
            note_variable(unsafe { CStr::from_ptr(name) }.to_bytes());
        }
        forward!(GETENV, fn(*const c_char) -> *mut c_char, name)
    }

    /// V8's clock is watched where JavaScript asks for it; what Node measures with is its own affair.
    fn note_clock(caller: usize) {
        if IS_WATCHING.load(Relaxed) && !is_nodes(caller) {
            note(Door::Clock, caller);
        }
    }

    pub(super) unsafe extern "C" fn time(at: *mut libc::time_t, caller: usize) -> libc::time_t {
        note_clock(caller);
        forward!(TIME, fn(*mut libc::time_t) -> libc::time_t, at)
    }

    pub(super) unsafe extern "C" fn gettimeofday(
        at: *mut libc::timeval,
        zone: *mut c_void,
        caller: usize,
    ) -> c_int {
        note_clock(caller);
        forward!(GETTIMEOFDAY, fn(*mut libc::timeval, *mut c_void) -> c_int, at, zone)
    }

    pub(super) unsafe extern "C" fn clock_gettime(
        clock: c_int,
        at: *mut libc::timespec,
        caller: usize,
    ) -> c_int {
        if clock == libc::CLOCK_REALTIME {
            note_clock(caller);
        }
        forward!(CLOCK_GETTIME, fn(c_int, *mut libc::timespec) -> c_int, clock, at)
    }

    /// The part of a register that a number of 32 bits is in; the rest may be anything.
    const LOWER_HALF: usize = 0xffff_ffff;

    /// Many draw by number: their C library need not know the call.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn syscall(
        number: c_long,
        argument_1: usize,
        argument_2: usize,
        argument_3: usize,
        argument_4: usize,
        argument_5: usize,
        argument_6: usize,
    ) -> c_long {
        if number == libc::SYS_getrandom {
            note(Door::System, 0);
        }
        // libuv has no other way to it on older Nodes.
        let folder = u32::try_from(argument_1 & LOWER_HALF).map(u32::cast_signed);
        if number == libc::SYS_statx && folder == Ok(libc::AT_FDCWD) {
            // SAFETY: the caller's path.
            unsafe { note_path(argument_2 as *const c_char, 0, door_of_path) };
        }
        forward!(
            SYSCALL,
            fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long,
            number,
            argument_1,
            argument_2,
            argument_3,
            argument_4,
            argument_5,
            argument_6
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_proc_is_told_by_what_it_says() {
        for (path, door) in [
            ("/proc/sys/kernel/random/uuid", Some(Door::Device)),
            ("/proc/12/stat", Some(Door::Proc)),
            ("/proc/uptime", Some(Door::Proc)),
            ("/proc/meminfo", Some(Door::Proc)),
            ("/proc/12/mountinfo", None),
            ("/proc/cpuinfo", None),
            ("/proc/version", None),
            ("/proc/sys/kernel/osrelease", None),
            ("/elsewhere/cpuinfo", Some(Door::Proc)),
            ("", Some(Door::Proc)),
        ] {
            assert_eq!(door_in_proc(path.as_bytes()), door, "{path}");
        }
    }

    #[test]
    fn a_path_that_each_call_has_another_of_is_told() {
        for (path, of_path, of_place) in [
            (".env", Some(Door::Folder), Some(Door::Folder)),
            (".", Some(Door::Folder), Some(Door::Folder)),
            ("", None, None),
            ("/", None, None),
            ("/etc/hosts", None, None),
            ("/proc", None, Some(Door::Proc)),
            ("/proc/", None, Some(Door::Proc)),
            ("/proc/self", None, Some(Door::Proc)),
            ("/proc//self/cwd", None, Some(Door::Proc)),
            ("/proc/thread-self", None, Some(Door::Proc)),
            ("/proc/12/fd/0", None, Some(Door::Proc)),
            ("/proc/self/exe", None, None),
            ("/proc/cpuinfo", None, None),
            ("/processes/12", None, None),
        ] {
            assert_eq!(door_of_path(path.as_bytes()), of_path, "{path}");
            assert_eq!(door_of_place(path.as_bytes()), of_place, "{path}");
        }
    }

    #[test]
    fn variables_are_told_by_name_and_are_bounded() {
        for number in 0..2 * MAX_VARIABLES {
            note_variable(format!("V{number:04}").as_bytes());
        }
        let told = variables();
        let names: Vec<_> = told.split(|byte| *byte == 0).collect();
        assert_eq!(
            names.len(),
            MAX_VARIABLES + 2,
            "with what stands for the rest, and nothing behind the last"
        );
        assert!(names.contains(&EVERY_VARIABLE) && names.contains(&b"V0000".as_slice()));
    }

    #[test]
    fn the_first_door_is_told_once_and_only_while_watching() {
        note(Door::Clock, 0);
        assert_eq!(take(), None);
        IS_WATCHING.store(true, Relaxed);
        note(Door::System, 0);
        note(Door::Clock, 0);
        IS_WATCHING.store(false, Relaxed);
        assert_eq!(take().as_deref(), Some(Door::System.says()));
        assert_eq!(take(), None);
    }
}
