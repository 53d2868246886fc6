//! Who connects - a call, or a process while it loads packages - with what it may, and what became of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::Serialize;
use serde_json::json;
use tokio::sync::Semaphore;

use super::{
    addresses::plain,
    answers::TTL_SECONDS,
    meter::Carried,
    rules::{Preset, Rules, Verdict},
};

/// How long an address may be connected to after it was given for a name: as long as the answer may be kept, and as long again for who
/// kept it.
const GRANTED_FOR: Duration = Duration::from_secs(2 * TTL_SECONDS as u64);

/// The most addresses that a caller has been given at a time; the oldest go first.
const MAX_GRANTS: usize = 1000;

/// The most places that are told of one caller; more are counted.
const MAX_TOLD: usize = 100;

/// Connections that one caller waits for at a time with sockets that block: each takes a thread of the host's.
const MAX_BLOCKING: usize = 16;

/// How many questions one caller may ask at once, and how often after that: more than any client does.
const QUESTIONS_AT_ONCE: u32 = 2000;
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(1);

/// DNS's port.
pub(super) const DNS_PORT: u16 = 53;

/// A place that was connected to, or would have been.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    /// The name that its address was given for, or the address.
    pub host: String,
    /// None of a look-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Why it was refused, or, under `audit`, would have been.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl Place {
    /// Where a connection leads to, by the first of the names that its address was given for, else by the address.
    fn of_connection(to: SocketAddr, names: &BTreeSet<String>) -> Self {
        let host = names.first().cloned().unwrap_or_else(|| plain(to.ip()).to_string());
        Self { host, port: Some(to.port()), refused: None }
    }
}

/// What a caller connected to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Each with the number of times.
    pub places: Vec<Told>,
    /// Connections and look-ups to places beyond the first [`MAX_TOLD`].
    pub more: u64,
}

/// One place, and how often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    #[serde(flatten)]
    pub place: Place,
    /// How often.
    pub count: u64,
    /// What these connections carried, as far as that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received_bytes: Option<u64>,
}

/// What is known of one place.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    times: u64,
    carried: Option<Carried>,
}

/// What becomes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is made.
    Direct,
    /// It is a question for names, and answered here.
    Resolver,
    /// It is refused.
    Refused,
}

/// Who connects.
#[derive(Debug)]
pub struct Caller {
    /// All of them have to allow a connection.
    rules: Vec<Arc<Rules>>,
    /// For the log; empty: nothing is logged.
    name: String,
    /// Of all callers of the process: connections that were refused.
    refusals: Arc<AtomicU64>,
    /// Whether it may use sockets of the machine's own services (npm, for git over ssh).
    pub(super) local_sockets: bool,
    state: Mutex<State>,
    /// Of connections that block.
    pub(super) blocking: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    grants: BTreeMap<IpAddr, BTreeMap<String, Instant>>,
    told: BTreeMap<Place, Count>,
    more: u64,
    /// The last refusal, in words.
    last_refusal: Option<String>,
    /// Sockets that a thread of the host's connects right now.
    connecting: BTreeMap<u64, Arc<OwnedFd>>,
    next: u64,
    is_over: bool,
    /// When what was asked so far is paid for.
    paid: Option<Instant>,
}

impl Caller {
    /// One under these rules; `refusals` counts those of all.
    pub(super) fn new(rules: Vec<Arc<Rules>>, name: String, refusals: Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(Self::of(rules, name, refusals))
    }

    /// One that may use sockets of the machine's own services, too.
    pub(super) fn with_local_sockets(
        rules: Vec<Arc<Rules>>,
        name: String,
        refusals: Arc<AtomicU64>,
    ) -> Arc<Self> {
        Arc::new(Self { local_sockets: true, ..Self::of(rules, name, refusals) })
    }

    fn of(rules: Vec<Arc<Rules>>, name: String, refusals: Arc<AtomicU64>) -> Self {
        Self {
            rules,
            name,
            refusals,
            local_sockets: false,
            state: Mutex::default(),
            blocking: Semaphore::new(MAX_BLOCKING),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether names are looked up here, and there are no sockets of datagrams: those could ask anybody.
    pub fn is_restricted(&self) -> bool {
        self.rules.iter().any(|rules| rules.is_restricted())
    }

    /// How long this question has to wait, so that who asks without end keeps nobody from the others'.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        let mut state = self.state();
        let paid = state.paid.map_or(now, |paid| paid.max(now)) + BETWEEN_QUESTIONS;
        state.paid = Some(paid);
        paid.saturating_duration_since(now + BETWEEN_QUESTIONS * QUESTIONS_AT_ONCE)
    }

    /// What becomes of a connection, and the place as which it was told: names are given for a while only, so that who asks for it
    /// later may find another. Told, logged and counted.
    pub(super) fn decide(&self, to: SocketAddr, now: Instant) -> (Decision, Place) {
        let address = plain(to.ip());
        let names = self.names_of(address, now);
        let refusal = self.refusal(|rules| rules.of_address(to, &names));
        if to.port() == DNS_PORT && self.is_restricted() && (refusal.is_some() || self.is_open_to(address)) {
            return (Decision::Resolver, Place::of_connection(to, &names));
        }
        let place = Place::of_connection(to, &names);
        let host = place.host.clone();
        self.tell(place, refusal, || {
            let at = format!("{}:{}", shown(address), to.port());
            if names.is_empty() {
                format!("a connection to {at}")
            } else {
                format!("a connection to {host} ({at})")
            }
        })
    }

    /// Whether what its connections carry is counted: under rules of any kind.
    pub(super) fn is_counted(&self) -> bool {
        self.rules.iter().any(|rules| **rules != Rules::default())
    }

    /// A connection to this place carried so much. Where the place is one too many to be told, so is this.
    pub(super) fn carried(&self, place: &Place, carried: Carried) {
        if let Some(count) = self.state().told.get_mut(place) {
            let sum = count.carried.get_or_insert_default();
            sum.sent = sum.sent.saturating_add(carried.sent);
            sum.received = sum.received.saturating_add(carried.received);
        }
    }

    /// Whether a question for this name is answered. Told, logged and counted where not.
    pub(super) fn may_ask(&self, name: &str) -> bool {
        let Some(refusal) = self.refusal(|rules| rules.of_name(name)) else { return true };
        let place = Place { host: name.to_owned(), port: None, refused: None };
        self.tell(place, Some(refusal), || format!("looking up {name}")).0 == Decision::Direct
    }

    /// Whether sockets of datagrams may be had.
    pub(super) fn may_send_datagrams(&self) -> bool {
        self.rules.iter().all(|rules| rules.audit || !rules.is_restricted())
    }

    /// Whether it may listen.
    pub(super) fn may_listen(&self) -> bool {
        let may = self.rules.iter().all(|rules| rules.may_listen());
        if !may {
            let why = "listening is closed where the network is: what comes in could carry data out";
            let refusal = Refusal { why: why.to_owned(), is_audit: false };
            self.tell(Place { host: "listen".to_owned(), port: None, refused: None }, Some(refusal), || {
                "listening".to_owned()
            });
        }
        may
    }

    /// A reason, of rules that mean it if any do.
    fn refusal<'a>(&'a self, of: impl Fn(&'a Rules) -> Verdict<'a>) -> Option<Refusal> {
        let refusals = self.rules.iter().filter_map(|rules| match of(rules) {
            Verdict::Allowed => None,
            Verdict::Refused(reason) => Some(Refusal { why: reason.to_string(), is_audit: rules.audit }),
        });
        refusals.min_by_key(|refusal| refusal.is_audit)
    }

    /// Public name servers are open to whom the Internet is, but names are looked up here all the same.
    fn is_open_to(&self, address: IpAddr) -> bool {
        !self.rules.iter().any(|rules| rules.preset == Preset::Nothing && rules.lists(address, DNS_PORT))
    }

    /// Notes a place, and what becomes of it: a refusal that is an audit's refuses nothing.
    fn tell(
        &self,
        place: Place,
        refusal: Option<Refusal>,
        what: impl FnOnce() -> String,
    ) -> (Decision, Place) {
        let decision = match &refusal {
            Some(Refusal { is_audit: false, .. }) => Decision::Refused,
            _ => Decision::Direct,
        };
        let mut state = self.state();
        let place = Place { refused: refusal.map(|refusal| refusal.why), ..place };
        if let Some(why) = &place.refused {
            // Once for each place, and not for more places than are told.
            if !self.name.is_empty() && !state.told.contains_key(&place) && state.told.len() < MAX_TOLD {
                let (caller, host, port) = (self.name.as_str(), place.host.as_str(), place.port.unwrap_or(0));
                if decision == Decision::Refused {
                    tracing::warn!(target: crate::log::NATIVE, caller, host, port, why, "A connection of a function was refused");
                } else {
                    tracing::warn!(target: crate::log::NATIVE, caller, host, port, why, "network.audit: this connection would be refused");
                }
                let event = if decision == Decision::Refused { "refused" } else { "audited" };
                crate::lifecycle::tell(|| {
                    let mut message = json!({ "event": event, "provider": "native", "caller": caller, "host": host, "reason": why });
                    if let Some(port) = place.port {
                        message["port"] = json!(port);
                    }
                    message
                });
            }
            if decision == Decision::Refused {
                self.refusals.fetch_add(1, Ordering::Relaxed);
                state.last_refusal = Some(format!("{} was refused: {why}", what()));
            }
        }
        if let Some(count) = state.told.get_mut(&place) {
            count.times += 1;
        } else if state.told.len() < MAX_TOLD {
            state.told.insert(place.clone(), Count { times: 1, carried: None });
        } else {
            state.more += 1;
        }
        (decision, place)
    }

    /// The names that this address was given for, not too long ago.
    fn names_of(&self, address: IpAddr, now: Instant) -> BTreeSet<String> {
        let mut state = self.state();
        let mut names = BTreeSet::new();
        if let Some(grants) = state.grants.get_mut(&address) {
            grants.retain(|_, until| *until > now);
            names.extend(grants.keys().cloned());
        }
        if address.is_loopback() {
            names.insert("localhost".to_owned());
        }
        names
    }

    /// Notes that these addresses are given for a name.
    pub(super) fn grant(&self, name: &str, addresses: impl IntoIterator<Item = IpAddr>, now: Instant) {
        let mut state = self.state();
        let until = now + GRANTED_FOR;
        for address in addresses {
            if state.grants.len() >= MAX_GRANTS {
                state.grants.retain(|_, names| names.values().any(|until| *until > now));
            }
            if state.grants.len() >= MAX_GRANTS {
                let oldest = state.grants.iter().min_by_key(|(_, names)| names.values().max().copied());
                if let Some(oldest) = oldest.map(|(address, _)| *address) {
                    state.grants.remove(&oldest);
                }
            }
            state.grants.entry(plain(address)).or_default().insert(name.to_owned(), until);
        }
    }

    /// Notes a socket that a thread is about to connect; none where the caller is gone already.
    pub(super) fn connecting(&self, socket: &Arc<OwnedFd>) -> Option<u64> {
        let mut state = self.state();
        if state.is_over {
            return None;
        }
        state.next += 1;
        let number = state.next;
        state.connecting.insert(number, Arc::clone(socket));
        Some(number)
    }

    pub(super) fn connected(&self, number: u64) {
        self.state().connecting.remove(&number);
    }

    /// Nobody waits any more: what is being connected is broken off.
    pub(super) fn end(&self) {
        let connecting = {
            let mut state = self.state();
            state.is_over = true;
            std::mem::take(&mut state.connecting)
        };
        for socket in connecting.into_values() {
            let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
        }
    }

    /// What was connected to; none where that was nothing.
    pub fn usage(&self) -> Option<Usage> {
        let state = self.state();
        let told = |(place, count): (&Place, &Count)| Told {
            place: place.clone(),
            count: count.times,
            sent_bytes: count.carried.map(|carried| carried.sent),
            received_bytes: count.carried.map(|carried| carried.received),
        };
        let places: Vec<_> = state.told.iter().map(told).collect();
        (!places.is_empty()).then_some(Usage { places, more: state.more })
    }

    /// The last refusal, in words.
    pub fn last_refusal(&self) -> Option<String> {
        self.state().last_refusal.clone()
    }
}

/// Why something is refused, or would be.
struct Refusal {
    why: String,
    is_audit: bool,
}

fn shown(address: IpAddr) -> String {
    match address {
        IpAddr::V4(_) => address.to_string(),
        IpAddr::V6(_) => format!("[{address}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(rules: &[serde_json::Value]) -> Arc<Caller> {
        let read = |value: &serde_json::Value| Arc::new(Rules::read(value.as_object().unwrap()).unwrap());
        Caller::new(rules.iter().map(read).collect(), "test".to_owned(), Arc::default())
    }

    #[test]
    fn an_address_is_open_while_its_name_was_given_not_long_ago() {
        let caller = caller(&[json!({ "allow": ["api.example:443"] })]);
        let (to, now) = ("203.0.114.9:443".parse().unwrap(), Instant::now());
        assert_eq!(caller.decide(to, now).0, Decision::Refused);
        caller.grant("api.example", [to.ip()], now);
        assert_eq!(caller.decide(to, now).0, Decision::Direct);
        assert_eq!(caller.decide("203.0.114.9:80".parse().unwrap(), now).0, Decision::Refused);
        assert_eq!(caller.decide(to, now + GRANTED_FOR).0, Decision::Refused);
        assert_eq!(caller.refusals.load(Ordering::Relaxed), 3);
        let text = caller.last_refusal().unwrap();
        assert!(text.contains("203.0.114.9:443") && text.contains("not in network.allow"), "{text}");
    }

    #[test]
    fn what_a_connection_carries_is_its_names_even_if_the_name_was_given_for_no_longer_than_it_took_to_connect()
     {
        let caller = caller(&[json!({ "allow": ["api.example:443"] })]);
        let (to, now) = (SocketAddr::from(([203, 0, 114, 9], 443)), Instant::now());
        caller.grant("api.example", [to.ip()], now);
        let (decision, place) = caller.decide(to, now);
        assert_eq!(decision, Decision::Direct);
        let later = now + GRANTED_FOR;
        assert_eq!(caller.decide(to, later).0, Decision::Refused, "control: the name is given no longer");
        caller.carried(&place, Carried { sent: 3, received: 5 });
        let usage = caller.usage().unwrap();
        let told = usage.places.iter().find(|told| told.place.host == "api.example").unwrap();
        assert_eq!((told.count, told.sent_bytes, told.received_bytes), (1, Some(3), Some(5)));
    }

    /// Rebinding: the name's owner gives another address each time (TTL 0), or lets it lead to a name of somebody's private network (CNAME). What
    /// the host's resolver finds at its end is what counts.
    #[test]
    fn an_allowed_name_leads_to_public_addresses_only_whatever_its_owner_answers() {
        let now = Instant::now();
        let name = "rebinds.example";
        for address in [
            "127.0.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "169.254.169.254",
            "100.100.100.200",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:10.1.2.3",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "fd00:ec2::254",
            "fe80::1",
            "ff02::1",
            "64:ff9b::10.1.2.3",
        ] {
            let private = SocketAddr::new(address.parse().unwrap(), 443);
            let public: SocketAddr = "203.0.114.9:443".parse().unwrap();
            let named = caller(&[json!({ "allow": [name] })]);
            named.grant(name, [public.ip()], now);
            assert_eq!(named.decide(public, now).0, Decision::Direct);
            named.grant(name, [private.ip()], now);
            assert_eq!(named.decide(private, now).0, Decision::Refused, "{address}");
            assert_eq!(named.decide(public, now).0, Decision::Direct, "{address}");
            let port = if private.is_ipv4() { format!("{address}:443") } else { format!("[{address}]:443") };
            let listed = caller(&[json!({ "allow": [name, port] })]);
            assert_eq!(listed.decide(private, now).0, Decision::Direct, "control: {address} is listed");
        }
    }

    #[test]
    fn all_rules_have_to_allow_it() {
        let caller = caller(&[json!({ "preset": "internet" }), json!({ "allow": ["1.1.1.1"] })]);
        let now = Instant::now();
        assert_eq!(caller.decide("1.1.1.1:443".parse().unwrap(), now).0, Decision::Direct);
        assert_eq!(caller.decide("1.0.0.1:443".parse().unwrap(), now).0, Decision::Refused);
        assert!(!caller.may_ask("x.example") && !caller.may_listen() && !caller.may_send_datagrams());
    }

    #[test]
    fn what_open_closes_is_closed_without_rules_and_an_audit_of_others_opens_nothing() {
        let metadata = "169.254.169.254:80".parse().unwrap();
        for rules in [vec![json!({})], vec![json!({}), json!({ "allow": [], "audit": true })]] {
            assert_eq!(caller(&rules).decide(metadata, Instant::now()).0, Decision::Refused);
        }
    }

    #[test]
    fn questions_go_to_the_resolver_unless_the_server_is_listed() {
        let now = Instant::now();
        for (rules, expected) in [
            (json!({ "allow": ["x.example"] }), Decision::Resolver),
            (json!({ "preset": "internet" }), Decision::Resolver),
            (json!({ "allow": ["9.9.9.9:53"] }), Decision::Direct),
            (json!({ "preset": "open" }), Decision::Direct),
        ] {
            assert_eq!(
                caller(std::slice::from_ref(&rules)).decide("9.9.9.9:53".parse().unwrap(), now).0,
                expected,
                "{rules}"
            );
        }
    }

    #[test]
    fn an_audit_refuses_nothing_and_tells_what_it_would() {
        let caller = caller(&[json!({ "allow": [], "audit": true })]);
        assert_eq!(caller.decide("1.1.1.1:443".parse().unwrap(), Instant::now()).0, Decision::Direct);
        assert!(caller.may_ask("x.example") && caller.may_listen() && caller.may_send_datagrams());
        let usage = caller.usage().unwrap();
        assert_eq!(usage.places.len(), 2);
        assert!(usage.places.iter().all(|told| told.place.refused.is_some()));
        assert_eq!((caller.last_refusal(), caller.refusals.load(Ordering::Relaxed)), (None, 0));
    }

    #[test]
    fn who_asks_without_end_waits() {
        let (caller, now) = (caller(&[json!({})]), Instant::now());
        let mut waits = (0..QUESTIONS_AT_ONCE).map(|_| caller.wait(now));
        assert!(waits.all(|wait| wait.is_zero()));
        assert_eq!(caller.wait(now), BETWEEN_QUESTIONS);
        assert_eq!(caller.wait(now), BETWEEN_QUESTIONS * 2);
        assert!(caller.wait(now + Duration::from_secs(10)).is_zero());
    }

    #[test]
    fn what_is_kept_of_a_caller_is_bounded() {
        let caller = caller(&[json!({ "allow": [] })]);
        let now = Instant::now();
        for number in 0..3000_u32 {
            let address = IpAddr::V4((0x0b00_0000 + number).into());
            caller.grant(&format!("{number}.example"), [address], now);
            caller.decide(SocketAddr::new(address, 1), now);
        }
        assert_eq!(caller.state().grants.len(), MAX_GRANTS);
        let usage = caller.usage().unwrap();
        assert_eq!((usage.places.len(), usage.more), (MAX_TOLD, 3000 - MAX_TOLD as u64));
    }
}
