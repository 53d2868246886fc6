//! Reads what is asked, finds out whose it is, and carries out what is decided.

use std::{
    collections::HashMap,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use native_sandbox_confine::Mark;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{OnceCell, Semaphore, oneshot},
};

use super::{
    caller::{Caller, Decision, Place, Usage},
    kernel::{self, Address, Answer, Request, Socket, Wish},
    meter::Meter,
    resolver::{self, Resolver},
    rules::Rules,
};
use crate::{process::Attend, sys};

/// Threads that connect sockets that block, at a time, of all callers.
const MAX_BLOCKING: usize = 64;

/// How far above a thread its call's process is looked for.
const MAX_ANCESTORS: usize = 128;

/// All callers of the process. One per host.
pub struct Egress {
    by_mark: RwLock<HashMap<Mark, Arc<Caller>>>,
    by_process: RwLock<HashMap<i32, Arc<Caller>>>,
    resolver: OnceCell<Arc<Resolver>>,
    blocking: Semaphore,
    refusals: Arc<AtomicU64>,
    meter: Arc<Meter>,
}

impl Default for Egress {
    fn default() -> Self {
        Self {
            by_mark: RwLock::default(),
            by_process: RwLock::default(),
            resolver: OnceCell::new(),
            blocking: Semaphore::new(MAX_BLOCKING),
            refusals: Arc::default(),
            meter: Arc::default(),
        }
    }
}

/// A caller that is known by its process. Goes when it is dropped; what it is connecting is broken off.
pub struct Known {
    egress: Arc<Egress>,
    caller: Arc<Caller>,
    mark: Option<Mark>,
    process: i32,
}

impl Known {
    /// Who it is.
    pub fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    /// What was connected to, once its processes are gone; none where that was nothing.
    pub async fn usage(&self) -> Option<Usage> {
        if self.caller.is_counted() {
            self.egress.meter.settle(&self.caller).await;
        }
        self.caller.usage()
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        if let Some(mark) = self.mark {
            self.egress.by_mark.write().unwrap_or_else(PoisonError::into_inner).remove(&mark);
        }
        self.egress.by_process.write().unwrap_or_else(PoisonError::into_inner).remove(&self.process);
        self.caller.end();
    }
}

/// Who attends to the processes that are started for one purpose.
struct Attendant {
    egress: Arc<Egress>,
    caller: Arc<Caller>,
}

impl Attend for Attendant {
    fn attend(&self, listener: OwnedFd) {
        tokio::spawn(attend(Arc::clone(&self.egress), listener, Arc::clone(&self.caller)));
    }
}

impl Egress {
    /// A caller under these rules, all of which have to allow what it does.
    pub fn caller(&self, rules: Vec<Arc<Rules>>, name: String) -> Arc<Caller> {
        Caller::new(rules, name, Arc::clone(&self.refusals))
    }

    /// For processes that are no call's, or not yet, under these rules.
    pub fn attendant(self: &Arc<Self>, rules: Vec<Arc<Rules>>, name: String) -> Arc<dyn Attend> {
        Arc::new(Attendant { egress: Arc::clone(self), caller: self.caller(rules, name) })
    }

    /// For npm where git may need local sockets.
    pub fn attendant_with_local_sockets(
        self: &Arc<Self>,
        rules: Vec<Arc<Rules>>,
        name: String,
    ) -> Arc<dyn Attend> {
        let caller = Caller::with_local_sockets(rules, name, Arc::clone(&self.refusals));
        Arc::new(Attendant { egress: Arc::clone(self), caller })
    }

    /// From now on what this process, and all below it, does is the caller's. `mark` is what they are marked by, if they are.
    pub fn know(self: &Arc<Self>, caller: Arc<Caller>, process: i32, mark: Option<Mark>) -> Known {
        if let Some(mark) = mark {
            self.by_mark.write().unwrap_or_else(PoisonError::into_inner).insert(mark, Arc::clone(&caller));
        }
        self.by_process.write().unwrap_or_else(PoisonError::into_inner).insert(process, Arc::clone(&caller));
        Known { egress: Arc::clone(self), caller, mark, process }
    }

    /// Connections, look-ups and the like that were refused so far.
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Whose a thread is; none where it is no call's.
    fn caller_of(&self, thread: i32) -> Option<Arc<Caller>> {
        let by_process = self.by_process.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(caller) = by_process.get(&thread) {
            return Some(Arc::clone(caller));
        }
        if by_process.is_empty() {
            return None;
        }
        let by_mark = self.by_mark.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(caller) = sys::mark_of(thread).and_then(|mark| by_mark.get(&mark)) {
            return Some(Arc::clone(caller));
        }
        // Where a keeper stands for it, it has no mark; but what is below a keeper stays below it.
        let mut number = thread;
        for _ in 0..MAX_ANCESTORS {
            let (process, parent) = sys::process_of(number)?;
            if let Some(caller) = by_process.get(&process).or_else(|| by_process.get(&parent)) {
                return Some(Arc::clone(caller));
            }
            if parent <= 1 {
                return None;
            }
            number = parent;
        }
        None
    }

    /// What a connection carries that was made, or is on its way, is counted.
    fn count(
        &self,
        socket: &OwnedFd,
        caller: &Arc<Caller>,
        (to, place): (SocketAddr, Place),
        answer: Answer,
    ) {
        if caller.is_counted() && matches!(answer, Answer::Done | Answer::Failed(libc::EINPROGRESS)) {
            self.meter.count(socket.as_fd(), caller, to, place);
        }
    }

    async fn resolver(&self) -> Option<&Arc<Resolver>> {
        let started = self.resolver.get_or_try_init(|| Resolver::start(Arc::new(resolver::by_host))).await;
        started
            .inspect_err(|error| tracing::error!(target: crate::log::NATIVE, %error, "No names can be looked up for functions"))
            .ok()
    }
}

/// Answers what is asked by the processes under one filter, until there is none. `default` is who they are when they are no call's.
async fn attend(egress: Arc<Egress>, listener: OwnedFd, default: Arc<Caller>) {
    let listener = match sys::register(listener, Interest::READABLE) {
        Ok(listener) => Arc::new(listener),
        // Closed with this, and so is the network of who is under it.
        Err(error) => {
            tracing::error!(target: crate::log::NATIVE, %error, "The network of a process is closed: nobody can be asked");
            return;
        }
    };
    loop {
        let Ok(mut ready) = listener.readable().await else { return };
        let request = match ready.try_io(|listener| kernel::receive(listener.as_fd())) {
            Err(_) | Ok(Ok(None)) => continue,
            Ok(Ok(Some(request))) => request,
            Ok(Err(_)) => return,
        };
        let caller = egress.caller_of(request.thread).unwrap_or_else(|| Arc::clone(&default));
        let wait = caller.wait(Instant::now());
        if wait.is_zero() {
            serve(&egress, &listener, caller, request).await;
        } else {
            let (egress, listener) = (Arc::clone(&egress), Arc::clone(&listener));
            // As many as there are threads that ask.
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                serve(&egress, &listener, caller, request).await;
            });
        }
    }
}

type Listener = Arc<AsyncFd<OwnedFd>>;

async fn serve(egress: &Arc<Egress>, listener: &Listener, caller: Arc<Caller>, request: Request) {
    let fd = listener.as_fd();
    match request.wish {
        // Decided by numbers in registers: the kernel may go on.
        Wish::Datagrams if caller.may_send_datagrams() => kernel::answer(fd, request, Answer::GoOn),
        Wish::Listen if caller.may_listen() => kernel::answer(fd, request, Answer::GoOn),
        Wish::Connect { descriptor, address, length } => {
            match asked(listener, &caller, request, descriptor, address, length) {
                Asked::Gone => {}
                Asked::Answered(answer) => kernel::answer(fd, request, answer),
                Asked::Resolver(socket, kind) => {
                    let answer = to_resolver(egress, &caller, &socket, kind).await;
                    kernel::answer(fd, request, answer);
                }
                Asked::Undo(socket, address) => {
                    egress.meter.undone(socket.as_fd());
                    kernel::answer(fd, request, kernel::connect(socket.as_fd(), &address));
                }
                Asked::Connect(socket, address, to, kind)
                    if kind.blocks && kind.kind == libc::SOCK_STREAM =>
                {
                    let (egress, listener) = (Arc::clone(egress), Arc::clone(listener));
                    tokio::spawn(async move {
                        let answer = connect_in_a_thread(&egress, &caller, socket, address, to).await;
                        kernel::answer(listener.as_fd(), request, answer);
                    });
                }
                Asked::Connect(socket, address, to, _) => {
                    let answer = kernel::connect(socket.as_fd(), &address);
                    egress.count(&socket, &caller, to, answer);
                    kernel::answer(fd, request, answer);
                }
            }
        }
        _ => kernel::answer(fd, request, Answer::Failed(libc::EACCES)),
    }
}

enum Asked {
    Gone,
    Answered(Answer),
    Resolver(OwnedFd, Socket),
    Connect(OwnedFd, Vec<u8>, (SocketAddr, Place), Socket),
    /// Its connection, or what it asks of the kernel, leads nowhere.
    Undo(OwnedFd, Vec<u8>),
}

fn asked(
    listener: &Listener,
    caller: &Arc<Caller>,
    request: Request,
    descriptor: i32,
    address: u64,
    length: usize,
) -> Asked {
    let failed = |errno| Asked::Answered(Answer::Failed(errno));
    let read = kernel::read_address(request, address, length);
    let copied = kernel::copy_descriptor(request, descriptor);
    // Only now is it known that both were of the thread that asks.
    if !kernel::is_waiting(listener.as_fd(), request) {
        return Asked::Gone;
    }
    let (to, bytes) = match read {
        Ok(read) => read,
        // It lets nobody look into its memory, and so nobody can say where it connects to.
        Err(libc::EPERM) => return failed(libc::EACCES),
        Err(errno) => return failed(errno),
    };
    let socket = match copied {
        Ok(socket) => socket,
        Err(libc::EPERM) => return failed(libc::EACCES),
        Err(errno) => return failed(errno),
    };
    let kind = match kernel::socket_of(socket.as_fd()) {
        Ok(kind) => kind,
        Err(errno) => return failed(errno),
    };
    let is_internet = matches!(kind.family, libc::AF_INET | libc::AF_INET6);
    match to {
        Address::Internet(to) if is_internet => match caller.decide(to, Instant::now()) {
            (Decision::Direct, place) => Asked::Connect(socket, bytes, (to, place), kind),
            (Decision::Resolver, _) if kind.kind == libc::SOCK_STREAM => Asked::Resolver(socket, kind),
            (Decision::Resolver | Decision::Refused, _) => failed(libc::EACCES),
        },
        // The kernel reads the path itself, in the caller's own folder and as the caller's user. A thread could make the descriptor another
        // socket meanwhile; who may use these runs nobody's code.
        Address::Other if kind.family == libc::AF_UNIX && caller.local_sockets => {
            Asked::Answered(Answer::GoOn)
        }
        Address::Nowhere if is_internet => Asked::Undo(socket, bytes),
        Address::Netlink if kind.family == libc::AF_NETLINK => Asked::Undo(socket, bytes),
        _ => failed(libc::EACCES),
    }
}

async fn to_resolver(egress: &Egress, caller: &Arc<Caller>, socket: &OwnedFd, kind: Socket) -> Answer {
    let place = egress.resolver().await.and_then(|resolver| {
        resolver.place(kind.family == libc::AF_INET6).map(|place| (Arc::clone(resolver), place))
    });
    let Some((resolver, place)) = place else { return Answer::Failed(libc::ECONNREFUSED) };
    // Blocks for no longer than this machine takes to take a connection into the queue of a listener of ours.
    let answer = kernel::connect(socket.as_fd(), &kernel::bytes_of(place));
    if let Some(from) = kernel::own_address(socket.as_fd()) {
        resolver.introduce(from, caller);
    }
    answer
}

async fn connect_in_a_thread(
    egress: &Egress,
    caller: &Arc<Caller>,
    socket: OwnedFd,
    address: Vec<u8>,
    to: (SocketAddr, Place),
) -> Answer {
    let (Ok(_turn), Ok(_own_turn)) = (egress.blocking.acquire().await, caller.blocking.acquire().await)
    else {
        return Answer::Failed(libc::EAGAIN);
    };
    let socket = Arc::new(socket);
    let Some(number) = caller.connecting(&socket) else { return Answer::Failed(libc::ECONNABORTED) };
    let connected = {
        let socket = Arc::clone(&socket);
        in_a_thread(move || kernel::connect(socket.as_fd(), &address)).await
    };
    caller.connected(number);
    let answer = connected.unwrap_or(Answer::Failed(libc::EAGAIN));
    egress.count(&socket, caller, to, answer);
    answer
}

/// Runs what blocks, for as long as the network takes, in a thread of its own: those of the runtime are few, and for what is quick. None where
/// there can be no thread.
pub(super) async fn in_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    /// As much as the C library's resolver takes, and more, bytes.
    const STACK_BYTES: usize = 256 * 1024;
    let (done, result) = oneshot::channel();
    let thread = thread::Builder::new().name("sandbox-network".to_owned()).stack_size(STACK_BYTES);
    thread.spawn(move || drop(done.send(work()))).ok()?;
    result.await.ok()
}
