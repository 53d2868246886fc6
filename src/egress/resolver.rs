//! Answers questions for names over TCP on loopback, for who was sent here: allowed names only, by the host's own resolver.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::CString,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore},
    time::timeout,
};

use super::{
    answers::{self, Outcome, Question, Want},
    attend::in_a_thread,
    caller::Caller,
    kernel,
};

/// The largest question, bytes: a name has 255, and options follow.
const MAX_QUESTION_BYTES: usize = 4096;

/// How long a connection may be idle.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// How long it takes at most until it is known whose a connection is.
const INTRODUCTION_LIMIT: Duration = Duration::from_secs(2);

/// How long the host's resolver may take for one name.
const LOOKUP_LIMIT: Duration = Duration::from_secs(15);

/// Connections at a time.
const MAX_CONNECTIONS: usize = 1024;

/// Names that are looked up at a time: each takes a thread.
const MAX_LOOKUPS: usize = 32;

/// How long what was found is used again: a question for addresses of one family follows that for the other at once.
const KEPT_FOR: Duration = Duration::from_secs(5);

/// Names that are kept.
const MAX_KEPT: usize = 1000;

/// All addresses of a name, however that is found out. Blocks.
pub(super) type Lookup = Arc<dyn Fn(&str) -> Outcome + Send + Sync>;

/// The resolver. Dropping the last handle ends it.
pub(super) struct Resolver {
    four: SocketAddr,
    six: Option<SocketAddr>,
    /// Whose connection comes from which port.
    callers: Mutex<HashMap<SocketAddr, Arc<Caller>>>,
    introduced: Notify,
    lookup: Lookup,
    lookups: Semaphore,
    connections: Arc<Semaphore>,
    kept: Mutex<BTreeMap<String, (Instant, Outcome)>>,
}

impl Resolver {
    /// Listens. In the tokio runtime current then.
    ///
    /// # Errors
    ///
    /// There is no port to be had on 127.0.0.1.
    pub(super) async fn start(lookup: Lookup) -> io::Result<Arc<Self>> {
        let four = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        // Machines without IPv6 have no sockets of it either.
        let six = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.ok();
        let resolver = Arc::new(Self {
            four: four.local_addr()?,
            six: six.as_ref().and_then(|six| six.local_addr().ok()),
            callers: Mutex::default(),
            introduced: Notify::new(),
            lookup,
            lookups: Semaphore::new(MAX_LOOKUPS),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            kept: Mutex::default(),
        });
        for listener in [Some(four), six].into_iter().flatten() {
            tokio::spawn(accept(listener, Arc::downgrade(&resolver)));
        }
        Ok(resolver)
    }

    /// Where it is, for a socket of this family.
    pub(super) fn place(&self, is_six: bool) -> Option<SocketAddr> {
        if is_six { self.six } else { Some(self.four) }
    }

    /// Says whose the connection from this address is.
    pub(super) fn introduce(&self, from: SocketAddr, caller: &Arc<Caller>) {
        self.callers().insert(from, Arc::clone(caller));
        self.introduced.notify_waiters();
    }

    fn callers(&self) -> MutexGuard<'_, HashMap<SocketAddr, Arc<Caller>>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Others on this machine may find the port: nobody introduces them.
    async fn caller_from(&self, from: SocketAddr) -> Option<Arc<Caller>> {
        let introduced = async {
            loop {
                let mut told = std::pin::pin!(self.introduced.notified());
                told.as_mut().enable();
                if let Some(caller) = self.callers().remove(&from) {
                    return caller;
                }
                told.await;
            }
        };
        timeout(INTRODUCTION_LIMIT, introduced).await.ok()
    }

    async fn find(self: &Arc<Self>, name: &str) -> Outcome {
        if let Some(outcome) = self.kept(name) {
            return outcome;
        }
        let Ok(_turn) = self.lookups.acquire().await else { return Outcome::Failed };
        // Whoever was before may have asked the same.
        if let Some(outcome) = self.kept(name) {
            return outcome;
        }
        let (lookup, asked) = (Arc::clone(&self.lookup), name.to_owned());
        let found = timeout(LOOKUP_LIMIT, in_a_thread(move || lookup(&asked))).await;
        let outcome = found.ok().flatten().unwrap_or(Outcome::Failed);
        if outcome != Outcome::Failed {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() >= MAX_KEPT {
                kept.retain(|_, (since, _)| since.elapsed() < KEPT_FOR);
            }
            if kept.len() < MAX_KEPT {
                kept.insert(name.to_owned(), (Instant::now(), outcome.clone()));
            }
        }
        outcome
    }

    fn kept(&self, name: &str) -> Option<Outcome> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(name).filter(|(since, _)| since.elapsed() < KEPT_FOR).map(|(_, outcome)| outcome.clone())
    }

    async fn answer(self: &Arc<Self>, caller: &Caller, Question { name, want }: Question) -> Outcome {
        if !caller.may_ask(&name) {
            return Outcome::Absent;
        }
        match self.find(&name).await {
            Outcome::Found(addresses) => {
                let is_wanted = |address: &IpAddr| match want {
                    Want::Four => address.is_ipv4(),
                    Want::Six => address.is_ipv6(),
                    Want::Other => false,
                };
                let wanted: BTreeSet<_> = addresses.into_iter().filter(is_wanted).collect();
                caller.grant(&name, wanted.iter().copied(), Instant::now());
                Outcome::Found(wanted)
            }
            other => other,
        }
    }

    async fn serve(self: Arc<Self>, mut stream: TcpStream, from: SocketAddr) -> io::Result<()> {
        let Some(caller) = self.caller_from(from).await else { return Ok(()) };
        loop {
            let length = match timeout(IDLE_LIMIT, stream.read_u16()).await {
                Ok(length) => usize::from(length?),
                Err(_) => return Ok(()),
            };
            if length > MAX_QUESTION_BYTES {
                return Ok(());
            }
            let mut message = vec![0; length];
            timeout(IDLE_LIMIT, stream.read_exact(&mut message))
                .await
                .map_err(|_| io::ErrorKind::TimedOut)??;
            let Some(question) = answers::read(&message) else { return Ok(()) };
            let outcome = self.answer(&caller, question).await;
            let Some(reply) = answers::answer(&message, &outcome) else { return Ok(()) };
            let Ok(length) = u16::try_from(reply.len()) else { return Ok(()) };
            let mut whole = length.to_be_bytes().to_vec();
            whole.extend(reply);
            timeout(IDLE_LIMIT, stream.write_all(&whole)).await.map_err(|_| io::ErrorKind::TimedOut)??;
        }
    }
}

async fn accept(listener: TcpListener, resolver: Weak<Resolver>) {
    /// Where none can be accepted: no descriptor is free, perhaps.
    const PAUSE: Duration = Duration::from_millis(50);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = gone(&resolver) => return,
        };
        let Some(resolver) = resolver.upgrade() else { return };
        match accepted {
            Ok((stream, from)) => {
                let Ok(place) = Arc::clone(&resolver.connections).try_acquire_owned() else { continue };
                tokio::spawn(async move {
                    let _place = place;
                    if let Err(error) = resolver.serve(stream, from).await
                        && error.kind() != io::ErrorKind::UnexpectedEof
                    {
                        tracing::debug!(%error, "a connection to the resolver ended");
                    }
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Ready when nobody has the resolver any more.
async fn gone(resolver: &Weak<Resolver>) {
    const LOOK: Duration = Duration::from_secs(1);
    while resolver.strong_count() > 0 {
        tokio::time::sleep(LOOK).await;
    }
}

/// By `getaddrinfo(3)`, as the host itself looks up names: its hosts file, its name service, its servers. Without its search list: the
/// function's own resolver has gone through that.
pub(super) fn by_host(name: &str) -> Outcome {
    let Ok(text) = CString::new(format!("{name}.")) else { return Outcome::Absent };
    match kernel::addresses_of(&text) {
        Ok(addresses) => Outcome::Found(addresses),
        Err(true) => Outcome::Failed,
        Err(false) => Outcome::Absent,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::egress::rules::Rules;

    async fn ask(stream: &mut TcpStream, name: &str) -> Option<Vec<u8>> {
        let question = answers::tests::asked(name);
        stream.write_u16(u16::try_from(question.len()).unwrap()).await.ok()?;
        stream.write_all(&question).await.ok()?;
        let length = stream.read_u16().await.ok()?;
        let mut reply = vec![0; length.into()];
        stream.read_exact(&mut reply).await.ok()?;
        Some(reply)
    }

    fn found(reply: &[u8]) -> usize {
        simple_dns::Packet::parse(reply).unwrap().answers.len()
    }

    #[tokio::test]
    async fn allowed_names_are_answered_and_their_addresses_open() {
        let lookup: Lookup = Arc::new(|name| match name {
            "api.example" => Outcome::Found(BTreeSet::from(["203.0.114.7".parse().unwrap()])),
            _ => Outcome::Absent,
        });
        let resolver = Resolver::start(lookup).await.unwrap();
        let rules = Rules::read(json!({ "allow": ["api.example"] }).as_object().unwrap()).unwrap();
        let caller = Caller::new(vec![Arc::new(rules)], "test".to_owned(), Arc::default());
        let mut stream = TcpStream::connect(resolver.place(false).unwrap()).await.unwrap();
        resolver.introduce(stream.local_addr().unwrap(), &caller);
        assert_eq!(found(&ask(&mut stream, "api.example").await.unwrap()), 1);
        assert_eq!(found(&ask(&mut stream, "evil.example").await.unwrap()), 0);
        let to = "203.0.114.7:443".parse().unwrap();
        assert_eq!(caller.decide(to, Instant::now()).0, super::super::caller::Decision::Direct);
        assert!(caller.last_refusal().unwrap().contains("evil.example"));
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_not_sent_here_is_not_answered() {
        let resolver = Resolver::start(Arc::new(|_| Outcome::Absent)).await.unwrap();
        let mut stream = TcpStream::connect(resolver.place(false).unwrap()).await.unwrap();
        assert_eq!(ask(&mut stream, "api.example").await, None);
    }
}
