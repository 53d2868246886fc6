//! The init of a PID namespace that somebody else makes: a program of one page, in memory only.
//!
//! A program of its own, because a process that shares its maker's memory makes every fork of that one dear (the kernel has to
//! tell the other processor), and one page without libraries, because it is run for each worker: some 50 µs. It is
//! started with all signals blocked and no capability, reaps what is left to it, and ends when it was told
//! to, by [`DISMISS`] from outside of its namespace, and has no child. What is inside can't tell it that: what it sends has a sender.

use std::{arch::global_asm, ffi::CStr, ffi::c_int, slice};

/// The name that `ps` shows.
pub(crate) const NAME: &CStr = c"sandbox-init";

/// What tells it to end as soon as nobody is left.
pub(crate) const DISMISS: c_int = libc::SIGUSR1;

/// The kernel's set of what it waits for.
const AWAITED: u64 = 1 << (libc::SIGCHLD - 1) | 1 << (DISMISS - 1);

/// Of `siginfo_t`: room for one, why a signal came (0: somebody sent it), and who sent it (0: nobody in here).
const INFO_BYTES: i32 = 128;
const INFO_CODE: i32 = 8;
const INFO_PID: i32 = 16;

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .rodata.native_sandbox_init, \"a\"",
    ".globl native_sandbox_init_start, native_sandbox_init_end",
    ".hidden native_sandbox_init_start, native_sandbox_init_end",
    "native_sandbox_init_start:",
    "    mov edi, {set_name}",
    "    lea rsi, [rip + 9f]",
    "    mov eax, {prctl}",
    "    syscall",
    "    mov edi, {set_dumpable}",
    "    xor esi, esi",
    "    mov eax, {prctl}",
    "    syscall",
    "    xor ebx, ebx", // whether it was told
    "    sub rsp, {info_bytes}",
    "2:  lea rdi, [rip + 8f]",
    "    mov rsi, rsp",
    "    xor edx, edx",
    "    mov r10d, 8",
    "    mov eax, {sigtimedwait}",
    "    syscall",
    "    cmp eax, {dismiss}",
    "    jne 3f",
    "    cmp dword ptr [rsp + {info_code}], 0",
    "    jne 3f",
    "    cmp dword ptr [rsp + {info_pid}], 0",
    "    jne 3f",
    "    mov ebx, 1",
    "3:  mov rdi, -1",
    "    xor esi, esi",
    "    mov edx, {wait_flags}",
    "    xor r10d, r10d",
    "    mov eax, {wait4}",
    "    syscall",
    "    test eax, eax",
    "    jg 3b", // one is reaped
    "    jz 2b", // there are others
    "    test ebx, ebx",
    "    jz 2b",
    "    xor edi, edi",
    "    mov eax, {exit_group}",
    "    syscall",
    "    .balign 8",
    "8:  .quad {awaited}",
    "9:  .asciz \"sandbox-init\"",
    "native_sandbox_init_end:",
    ".popsection",
    set_name = const libc::PR_SET_NAME,
    set_dumpable = const libc::PR_SET_DUMPABLE,
    prctl = const libc::SYS_prctl,
    sigtimedwait = const libc::SYS_rt_sigtimedwait,
    wait4 = const libc::SYS_wait4,
    exit_group = const libc::SYS_exit_group,
    wait_flags = const libc::WNOHANG | libc::__WALL,
    dismiss = const DISMISS,
    awaited = const AWAITED,
    info_bytes = const INFO_BYTES,
    info_code = const INFO_CODE,
    info_pid = const INFO_PID,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .rodata.native_sandbox_init, \"a\"",
    ".globl native_sandbox_init_start, native_sandbox_init_end",
    ".hidden native_sandbox_init_start, native_sandbox_init_end",
    ".balign 4",
    "native_sandbox_init_start:",
    "    mov x0, #{set_name}",
    "    adr x1, 9f",
    "    mov x8, #{prctl}",
    "    svc #0",
    "    mov x0, #{set_dumpable}",
    "    mov x1, #0",
    "    mov x8, #{prctl}",
    "    svc #0",
    "    mov w19, #0", // whether it was told
    "    sub sp, sp, #{info_bytes}",
    "2:  adr x0, 8f",
    "    mov x1, sp",
    "    mov x2, #0",
    "    mov x3, #8",
    "    mov x8, #{sigtimedwait}",
    "    svc #0",
    "    cmp w0, #{dismiss}",
    "    b.ne 3f",
    "    ldr w1, [sp, #{info_code}]",
    "    cbnz w1, 3f",
    "    ldr w1, [sp, #{info_pid}]",
    "    cbnz w1, 3f",
    "    mov w19, #1",
    "3:  mov x0, #-1",
    "    mov x1, #0",
    "    ldr w2, 7f",
    "    mov x3, #0",
    "    mov x8, #{wait4}",
    "    svc #0",
    "    cmp w0, #0",
    "    b.gt 3b", // one is reaped
    "    b.eq 2b", // there are others
    "    cbz w19, 2b",
    "    mov x0, #0",
    "    mov x8, #{exit_group}",
    "    svc #0",
    "    .balign 8",
    "8:  .xword {awaited}",
    "7:  .word {wait_flags}",
    "9:  .asciz \"sandbox-init\"",
    "native_sandbox_init_end:",
    ".popsection",
    set_name = const libc::PR_SET_NAME,
    set_dumpable = const libc::PR_SET_DUMPABLE,
    prctl = const libc::SYS_prctl,
    sigtimedwait = const libc::SYS_rt_sigtimedwait,
    wait4 = const libc::SYS_wait4,
    exit_group = const libc::SYS_exit_group,
    wait_flags = const libc::WNOHANG | libc::__WALL,
    dismiss = const DISMISS,
    awaited = const AWAITED,
    info_bytes = const INFO_BYTES,
    info_code = const INFO_CODE,
    info_pid = const INFO_PID,
);

unsafe extern "C" {
    static native_sandbox_init_start: u8;
    static native_sandbox_init_end: u8;
}

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// Where it is mapped; a multiple of the largest page there is.
const ADDRESS: u64 = 0x40_0000;
const PAGE_BYTES: u64 = 0x1_0000;

/// Of a 64-bit ELF file: its head, and one entry about what to map. There are two: the code, and that the stack is none.
const HEAD_BYTES: u16 = 64;
const ENTRY_BYTES: u16 = 56;
const ENTRIES: u16 = 2;

const EXECUTABLE: u16 = 2;
const LOAD: u32 = 1;
const STACK: u32 = 0x6474_e551;
const READ_EXECUTE: u32 = 4 | 1;
const READ_WRITE: u32 = 4 | 2;

/// The program as an ELF file.
pub(crate) fn image() -> Vec<u8> {
    // SAFETY: both are labels around bytes that are there for good.
    let code = unsafe {
        let (start, end) = (&raw const native_sandbox_init_start, &raw const native_sandbox_init_end);
        slice::from_raw_parts(start, end.addr() - start.addr())
    };
    let code_at = u64::from(HEAD_BYTES) + u64::from(ENTRY_BYTES) * u64::from(ENTRIES);
    let size = code_at + code.len() as u64;
    // 64 bits, little-endian, version 1, System V.
    let mut file = Vec::from(*b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let put16 = |file: &mut Vec<u8>, number: u16| file.extend_from_slice(&number.to_le_bytes());
    let put32 = |file: &mut Vec<u8>, number: u32| file.extend_from_slice(&number.to_le_bytes());
    let put64 = |file: &mut Vec<u8>, number: u64| file.extend_from_slice(&number.to_le_bytes());
    put16(&mut file, EXECUTABLE);
    put16(&mut file, MACHINE);
    put32(&mut file, 1);
    // Entry, entries about what to map, no sections, no flags.
    for number in [ADDRESS + code_at, HEAD_BYTES.into(), 0] {
        put64(&mut file, number);
    }
    put32(&mut file, 0);
    for number in [HEAD_BYTES, ENTRY_BYTES, ENTRIES, 0, 0, 0] {
        put16(&mut file, number);
    }
    for (kind, flags, address, bytes) in [(LOAD, READ_EXECUTE, ADDRESS, size), (STACK, READ_WRITE, 0, 0)] {
        put32(&mut file, kind);
        put32(&mut file, flags);
        // Offset, address twice, bytes in the file and in memory, alignment.
        for number in [0, address, address, bytes, bytes, PAGE_BYTES] {
            put64(&mut file, number);
        }
    }
    file.extend_from_slice(code);
    file
}
