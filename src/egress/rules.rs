//! What a function may connect to: rules, as options write them, and what they say of one connection. Pure.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde_json::{Map, Value, json};

use super::addresses::{Kind, kind_of, plain};

/// Rules of one list; each is looked at for each new connection.
pub(super) const MAX_RULES: usize = 1000;

/// What is allowed where no rule says more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Preset {
    /// Nothing.
    Nothing,
    /// Public addresses.
    Internet,
    /// All that the host reaches, but for its neighbours on the wire and the metadata services of clouds.
    Open,
}

/// What a function may connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rules {
    /// What is allowed beside `allow`.
    pub preset: Preset,
    /// Allowed, whatever kind of address it is.
    pub allow: Vec<Rule>,
    /// Refused, whatever else is said.
    pub deny: Vec<Rule>,
    /// Nothing is refused, but what would have been is told.
    pub audit: bool,
}

/// One rule: whom it is about, and at which ports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// As it was written.
    text: String,
    whom: Whom,
    ports: Option<(u16, u16)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Whom {
    /// A name in lower case, without the last dot.
    Name(String),
    /// A name whose addresses are open whatever their kind.
    Anywhere(String),
    /// All names below this one.
    Below(String),
    /// Addresses that begin by so many bits of this one.
    Block(IpAddr, u8),
}

/// What is said of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict<'a> {
    /// It may be.
    Allowed,
    /// It may not, for this reason.
    Refused(Reason<'a>),
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason<'a> {
    /// A rule of `deny` says so.
    Denied(&'a Rule),
    /// No rule of `allow` says that it may be.
    NotListed,
    /// A rule of `allow` has the name, but a name opens public addresses only.
    NamedOnly(Kind),
    /// The preset closes addresses of this kind.
    Closed(Preset, Kind),
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(rule) => write!(f, "\"{}\" is in network.deny", rule.text),
            Self::NotListed => f.write_str("not in network.allow"),
            Self::NamedOnly(kind) => {
                write!(
                    f,
                    "its name is in network.allow, but leads to {}, which needs a rule with the address",
                    kind.name()
                )
            }
            Self::Closed(preset, kind) => {
                write!(f, "{} is closed by network: \"{}\"", kind.name(), preset.name())
            }
        }
    }
}

impl Preset {
    /// As options have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Internet => "internet",
            Self::Open => "open",
        }
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self { preset: Preset::Open, allow: Vec::new(), deny: Vec::new(), audit: false }
    }
}

impl Rules {
    /// Reads an object `{ preset?, allow?, deny?, audit? }`.
    ///
    /// # Errors
    ///
    /// What is wrong, and what can be written instead.
    pub fn read(object: &Map<String, Value>) -> Result<Self, String> {
        for name in object.keys() {
            if !["preset", "allow", "deny", "audit"].contains(&name.as_str()) {
                return Err(format!("network has no \"{name}\"; it has preset, allow, deny and audit"));
            }
        }
        let allow = list(object.get("allow"), "allow")?;
        let deny = list(object.get("deny"), "deny")?.unwrap_or_default();
        let preset = match object.get("preset") {
            None | Some(Value::Null) if allow.is_some() => Preset::Nothing,
            None | Some(Value::Null) => Preset::Open,
            Some(Value::String(text)) if text == "open" => Preset::Open,
            Some(Value::String(text)) if text == "internet" => Preset::Internet,
            Some(Value::String(text)) if text == "none" => {
                return Err(
                    "network.preset \"none\" takes no rules: write network: \"none\", or leave preset out to allow what allow lists alone"
                        .to_owned(),
                );
            }
            Some(other) => {
                return Err(format!("network.preset must be \"open\" or \"internet\", not {other}"));
            }
        };
        let audit = match object.get("audit") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(audit)) => *audit,
            Some(other) => return Err(format!("network.audit must be true or false, not {other}")),
        };
        Ok(Self { preset, allow: allow.unwrap_or_default(), deny, audit })
    }

    /// Nothing but this address and port.
    pub fn only(to: SocketAddr) -> Self {
        let bits = if to.is_ipv4() { 32 } else { 128 };
        let (whom, ports) = (Whom::Block(to.ip(), bits), Some((to.port(), to.port())));
        let rule = Rule { text: to.to_string(), whom, ports };
        Self { preset: Preset::Nothing, allow: vec![rule], ..Self::default() }
    }

    /// These hosts of the operator's own choice, `host:port` each, wherever they are. What is none is passed over.
    pub fn of_hosts(hosts: &[String]) -> Self {
        let rules = hosts.iter().filter_map(|host| Rule::read(host).ok()).map(|rule| match rule.whom {
            Whom::Name(name) => Rule { whom: Whom::Anywhere(name), ..rule },
            _ => rule,
        });
        Self { preset: Preset::Nothing, allow: rules.collect(), ..Self::default() }
    }

    /// These, and hosts of the operator's own choice beside them; see [`Rules::of_hosts`].
    #[must_use]
    pub fn with_hosts(&self, hosts: &[String]) -> Self {
        let mut all = self.clone();
        all.allow.extend(Self::of_hosts(hosts).allow);
        all
    }

    /// Nothing at all.
    pub fn nothing() -> Self {
        Self { preset: Preset::Nothing, ..Self::default() }
    }

    /// As the option is written.
    pub fn to_value(&self) -> Value {
        let texts = |list: &[Rule]| list.iter().map(|rule| rule.text.clone()).collect::<Vec<_>>();
        if self.allow.is_empty() && self.deny.is_empty() && !self.audit && self.preset != Preset::Nothing {
            return json!(self.preset.name());
        }
        let mut object = Map::new();
        if self.preset != Preset::Nothing {
            object.insert("preset".to_owned(), json!(self.preset.name()));
        }
        if self.preset == Preset::Nothing || !self.allow.is_empty() {
            object.insert("allow".to_owned(), json!(texts(&self.allow)));
        }
        if !self.deny.is_empty() {
            object.insert("deny".to_owned(), json!(texts(&self.deny)));
        }
        if self.audit {
            object.insert("audit".to_owned(), json!(true));
        }
        Value::Object(object)
    }

    /// What these say of a connection to an address which the function got for these names, in lower case.
    pub(super) fn of_address<'a>(&'a self, to: SocketAddr, names: &BTreeSet<String>) -> Verdict<'a> {
        let (address, port) = (plain(to.ip()), to.port());
        let is_meant = |rule: &&Rule| rule.means(address, port, names);
        if let Some(rule) = self.deny.iter().find(is_meant) {
            return Verdict::Refused(Reason::Denied(rule));
        }
        // Whoever owns a name may point it at this machine or its neighbours, so a name opens public addresses only.
        let kind = kind_of(address);
        let mut is_named = false;
        for rule in self.allow.iter().filter(is_meant) {
            if rule.opens(kind) {
                return Verdict::Allowed;
            }
            is_named = true;
        }
        let is_open = match self.preset {
            Preset::Nothing if is_named => return Verdict::Refused(Reason::NamedOnly(kind)),
            Preset::Nothing => return Verdict::Refused(Reason::NotListed),
            Preset::Internet => kind == Kind::Public,
            Preset::Open => !matches!(kind, Kind::LinkLocal | Kind::Metadata),
        };
        if is_open { Verdict::Allowed } else { Verdict::Refused(Reason::Closed(self.preset, kind)) }
    }

    /// What these say of the question for the addresses of a name.
    pub(super) fn of_name<'a>(&'a self, name: &str) -> Verdict<'a> {
        // A rule about some ports leaves others, so the name may be asked for.
        if let Some(rule) = self.deny.iter().find(|rule| rule.ports.is_none() && rule.names(name)) {
            return Verdict::Refused(Reason::Denied(rule));
        }
        if self.preset != Preset::Nothing || self.allow.iter().any(|rule| rule.names(name)) {
            Verdict::Allowed
        } else {
            Verdict::Refused(Reason::NotListed)
        }
    }

    /// Whether look-ups have to be answered here: not all is open, or a rule is about a name.
    pub fn is_restricted(&self) -> bool {
        let is_of_name = |rule: &Rule| !matches!(rule.whom, Whom::Block(..));
        self.preset != Preset::Open || self.allow.iter().chain(&self.deny).any(is_of_name)
    }

    /// Whether `allow` has this very address.
    pub(super) fn lists(&self, address: IpAddr, port: u16) -> bool {
        self.allow
            .iter()
            .any(|rule| matches!(rule.whom, Whom::Block(..)) && rule.means(address, port, &BTreeSet::new()))
    }

    /// Whether ports may be listened at: what comes in is not asked about, so only where all the way out is open.
    pub(super) fn may_listen(&self) -> bool {
        self.preset == Preset::Open || self.audit
    }
}

fn list(value: Option<&Value>, name: &str) -> Result<Option<Vec<Rule>>, String> {
    let items = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(items)) => items,
        Some(other) => {
            return Err(format!(
                "network.{name} must be a list of rules such as \"api.example.com:443\", not {other}"
            ));
        }
    };
    if items.len() > MAX_RULES {
        return Err(format!("network.{name} has {} rules; at most {MAX_RULES}", items.len()));
    }
    let rules = items.iter().map(|item| match item {
        Value::String(text) => {
            Rule::read(text).map_err(|why| format!("network.{name}: {text:?} is no rule: {why}"))
        }
        other => Err(format!("network.{name} must be a list of strings, and {other} is none")),
    });
    rules.collect::<Result<_, _>>().map(Some)
}

impl Rule {
    /// Reads `host`, `*.host`, an address or a block of addresses, each with `:port` or `:first-last` if not all are meant.
    fn read(text: &str) -> Result<Self, String> {
        const FORMS: &str = "write a host (api.example.com), a wildcard (*.example.org), an address or a block (10.0.0.0/8, [2001:db8::]/32), each with :port if not all are meant";
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err(format!("it is empty; {FORMS}"));
        }
        if trimmed.contains("://") {
            return Err("it is a URL; write its host, and :port if not all are meant".to_owned());
        }
        let (whom, ports) = split(trimmed)?;
        let ports = ports.map(read_ports).transpose()?;
        let whom = read_whom(whom).ok_or_else(|| FORMS.to_owned())??;
        Ok(Self { text: text.to_owned(), whom, ports })
    }

    fn means(&self, address: IpAddr, port: u16, names: &BTreeSet<String>) -> bool {
        if !self.ports.is_none_or(|(first, last)| (first..=last).contains(&port)) {
            return false;
        }
        match &self.whom {
            Whom::Block(block, bits) => is_in(address, *block, *bits),
            _ => names.iter().any(|name| self.names(name)),
        }
    }

    /// Whether it is enough for an address of this kind.
    fn opens(&self, kind: Kind) -> bool {
        match &self.whom {
            Whom::Block(..) | Whom::Anywhere(_) => true,
            // The one name that nobody can point elsewhere (RFC 6761).
            Whom::Name(name) if name == "localhost" => matches!(kind, Kind::Loopback | Kind::Public),
            Whom::Name(_) | Whom::Below(_) => kind == Kind::Public,
        }
    }

    fn names(&self, name: &str) -> bool {
        match &self.whom {
            Whom::Name(exact) | Whom::Anywhere(exact) => exact == name,
            Whom::Below(parent) => {
                name.strip_suffix(parent.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            Whom::Block(..) => false,
        }
    }
}

/// The host and the ports behind it. Only an address of IPv6 has more than one colon.
fn split(text: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, behind) = rest.split_once(']').ok_or("the bracket is not closed")?;
        // `[2001:db8::]/32:443`
        if let Some(block) = behind.strip_prefix('/') {
            let (_, ports) = block.split_once(':').map_or((block, None), |(bits, ports)| (bits, Some(ports)));
            let end = text.len() - ports.map_or(0, |ports| ports.len() + 1);
            return Ok((&text[..end], ports));
        }
        return match behind.strip_prefix(':') {
            Some(ports) => Ok((address, Some(ports))),
            None if behind.is_empty() => Ok((address, None)),
            None => Err("behind the bracket comes :port, or nothing".to_owned()),
        };
    }
    if text.matches(':').count() > 1 {
        return Ok((text, None));
    }
    Ok(text.split_once(':').map_or((text, None), |(whom, ports)| (whom, Some(ports))))
}

fn read_ports(text: &str) -> Result<(u16, u16), String> {
    if text == "*" {
        return Ok((0, u16::MAX));
    }
    let wrong = || format!("{text:?} is no port: a number from 1 to 65535, or two with - between them");
    let port = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|port| digits && *port > 0).ok_or_else(wrong)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (port(first)?, port(last)?);
    if first <= last { Ok((first, last)) } else { Err(wrong()) }
}

/// None where it is nothing that has a form; an error where it has one and is wrong.
fn read_whom(text: &str) -> Option<Result<Whom, String>> {
    if let Some((block, bits)) = text.split_once('/') {
        let address: IpAddr = block.trim_matches(['[', ']']).parse().ok()?;
        let (address, most) = (plain(address), if address.is_ipv4() { 32 } else { 128 });
        let bits = bits.parse::<u8>().ok().filter(|bits| *bits <= most);
        let Some(bits) = bits else {
            return Some(Err(format!("a block of such addresses has 0 to {most} bits")));
        };
        if !is_in(cleared(address, bits), address, most) {
            return Some(Err(format!("the block begins at {}/{bits}", cleared(address, bits))));
        }
        return Some(Ok(Whom::Block(address, bits)));
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        let address = plain(address);
        return Some(Ok(Whom::Block(address, if address.is_ipv4() { 32 } else { 128 })));
    }
    if let Some(parent) = text.strip_prefix("*.") {
        return Some(folded(parent).map(Whom::Below));
    }
    if text == "*" {
        return Some(Err("it would allow everything: use preset \"internet\" or \"open\"".to_owned()));
    }
    Some(folded(text).map(Whom::Name))
}

/// A name in the form that questions have: ASCII, in lower case, without the last dot.
pub(super) fn folded(name: &str) -> Result<String, String> {
    if !name.is_ascii() {
        return Err(format!("{name:?} is not in ASCII: write the xn-- form of it"));
    }
    let ascii = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    // What looks like a number is read as an address by some: 0x7f.1, 2130706433, 127.1.
    let last = ascii.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if ascii.len() > 253 || is_number || !ascii.split('.').all(is_label) {
        return Err(format!("{name:?} is no host name"));
    }
    Ok(ascii)
}

fn is_in(address: IpAddr, block: IpAddr, bits: u8) -> bool {
    address.is_ipv4() == block.is_ipv4() && cleared(address, bits) == cleared(block, bits)
}

/// With all but the first bits cleared.
fn cleared(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(value: &Value) -> Rules {
        Rules::read(value.as_object().unwrap()).unwrap()
    }

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    fn allows(rules: &Rules, to: &str, of: &[&str]) -> bool {
        rules.of_address(to.parse().unwrap(), &names(of)) == Verdict::Allowed
    }

    #[test]
    fn names_wildcards_ports_and_blocks_mean_what_they_say() {
        let list = rules(&json!({ "allow": [
            "api.example.com", "*.example.org:443", "10.1.0.0/16:5432", "[2001:db8:1::]/48", "198.51.100.7:8000-8100", "XN--Bcher-kva.Example.", "::ffff:192.0.2.9",
        ] }));
        assert!(allows(&list, "1.2.3.4:80", &["api.example.com"]));
        assert!(!allows(&list, "1.2.3.4:80", &["www.api.example.com"]));
        assert!(!allows(&list, "1.2.3.4:80", &[]));
        assert!(allows(&list, "1.2.3.4:443", &["a.b.example.org"]));
        assert!(!allows(&list, "1.2.3.4:444", &["a.example.org"]));
        assert!(!allows(&list, "1.2.3.4:443", &["example.org"]));
        assert!(!allows(&list, "1.2.3.4:443", &["notexample.org"]));
        assert!(allows(&list, "10.1.2.3:5432", &[]) && !allows(&list, "10.1.2.3:80", &[]));
        assert!(allows(&list, "[::ffff:10.1.2.3]:5432", &[]));
        assert!(allows(&list, "[2001:db8:1:2::3]:9", &[]) && !allows(&list, "[2001:db8:2::3]:9", &[]));
        assert!(allows(&list, "198.51.100.7:8050", &[]) && !allows(&list, "198.51.100.7:8101", &[]));
        assert!(allows(&list, "1.2.3.4:1", &["xn--bcher-kva.example"]));
        assert!(allows(&list, "192.0.2.9:1", &[]));
    }

    #[test]
    fn deny_wins_and_order_does_not_matter() {
        let list = rules(&json!({ "allow": ["*.example.org"], "deny": ["evil.example.org", "8.8.8.0/24"] }));
        assert!(allows(&list, "1.2.3.4:80", &["good.example.org"]));
        assert!(!allows(&list, "1.2.3.4:80", &["evil.example.org", "good.example.org"]));
        assert!(!allows(&list, "8.8.8.8:80", &["good.example.org"]));
        let Verdict::Refused(reason) = list.of_name("evil.example.org") else { panic!() };
        assert_eq!(reason.to_string(), "\"evil.example.org\" is in network.deny");
    }

    #[test]
    fn a_name_opens_no_private_address_whoever_answers_for_it() {
        let list = rules(&json!({ "allow": ["*.example.org", "db.example.org", "10.0.0.8", "localhost"] }));
        assert!(!allows(&list, "127.0.0.1:80", &["rebound.example.org"]));
        assert!(!allows(&list, "169.254.169.254:80", &["rebound.example.org"]));
        assert!(!allows(&list, "10.0.0.7:5432", &["db.example.org"]));
        assert!(allows(&list, "10.0.0.8:5432", &["db.example.org"]));
        assert!(
            allows(&list, "127.0.0.1:80", &["localhost"]) && !allows(&list, "10.0.0.7:80", &["localhost"])
        );
        let Verdict::Refused(reason) =
            list.of_address("10.0.0.7:80".parse().unwrap(), &names(&["db.example.org"]))
        else {
            panic!()
        };
        assert!(reason.to_string().contains("a private address, which needs a rule"), "{reason}");
    }

    #[test]
    fn presets_close_what_they_say() {
        let open = Rules::default();
        let internet = rules(&json!({ "preset": "internet", "allow": ["10.0.0.5:80"] }));
        for (to, in_open, on_internet) in [
            ("1.1.1.1:443", true, true),
            ("127.0.0.1:80", true, false),
            ("10.0.0.1:80", true, false),
            ("10.0.0.5:80", true, true),
            ("169.254.169.254:80", false, false),
            ("[::ffff:169.254.169.254]:80", false, false),
            ("[fe80::1]:80", false, false),
            ("100.100.100.200:80", false, false),
            ("224.0.0.1:80", true, false),
            ("0.0.0.0:80", true, false),
        ] {
            assert_eq!((allows(&open, to, &[]), allows(&internet, to, &[])), (in_open, on_internet), "{to}");
        }
        let back = rules(&json!({ "preset": "open", "allow": ["169.254.169.254:80"] }));
        assert!(allows(&back, "169.254.169.254:80", &[]));
        let Verdict::Refused(reason) = open.of_address("169.254.169.254:80".parse().unwrap(), &names(&[]))
        else {
            panic!()
        };
        assert_eq!(reason.to_string(), "a cloud's metadata service is closed by network: \"open\"");
    }

    #[test]
    fn what_is_no_rule_is_named_with_what_can_be_written() {
        for (value, part) in [
            (json!({ "allow": ["https://x.example/"] }), "it is a URL"),
            (json!({ "allow": [""] }), "it is empty"),
            (json!({ "allow": ["*"] }), "preset"),
            (json!({ "allow": ["a.*.example"] }), "no host name"),
            (json!({ "allow": ["x.example:0"] }), "no port"),
            (json!({ "allow": ["x.example:70000"] }), "no port"),
            (json!({ "allow": ["x.example:9-8"] }), "no port"),
            (json!({ "allow": ["10.0.0.1/8"] }), "begins at 10.0.0.0/8"),
            (json!({ "allow": ["10.0.0.0/33"] }), "0 to 32"),
            (json!({ "allow": ["127.1"] }), "no host name"),
            (json!({ "allow": ["0x7f.0x1"] }), "no host name"),
            (json!({ "allow": ["b\u{fc}cher.example"] }), "xn--"),
            (json!({ "allow": [7] }), "7 is none"),
            (json!({ "allow": "x.example" }), "must be a list"),
            (json!({ "alow": [] }), "no \"alow\""),
            (json!({ "preset": "closed" }), "\"open\" or \"internet\""),
            (json!({ "preset": "none" }), "network: \"none\""),
            (json!({ "audit": 1 }), "true or false"),
            (json!({ "allow": ["[::1"] }), "not closed"),
        ] {
            let error = Rules::read(value.as_object().unwrap()).unwrap_err();
            assert!(error.contains(part), "{value}: {error}");
        }
    }

    #[test]
    fn rules_are_told_as_they_are_written() {
        for value in [
            json!({ "allow": ["A.example:443", "10.0.0.0/8"], "deny": ["b.example"], "audit": true }),
            json!({ "preset": "internet", "deny": ["b.example"] }),
            json!({ "allow": [] }),
        ] {
            assert_eq!(rules(&value).to_value(), value);
        }
        assert_eq!(rules(&json!({ "preset": "internet" })).to_value(), json!("internet"));
    }

    #[test]
    fn an_allow_list_alone_allows_nothing_else() {
        let list = rules(&json!({ "allow": [] }));
        assert!(!allows(&list, "1.1.1.1:443", &[]) && !list.may_listen() && list.is_restricted());
        assert_eq!(list.of_name("x.example"), Verdict::Refused(Reason::NotListed));
        assert!(Rules::default().may_listen() && !Rules::default().is_restricted());
    }
}
