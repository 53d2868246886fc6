//! A plan as bytes. Both ends come from one build; the version is for the day they do not. Pure.
//!
//! Numbers are little-endian; a list is a `u32` count and its items, a text a `u32` length and its bytes.

use std::ffi::CString;

use crate::plan::{CacheLink, Contents, Domain, Fixtures, Instruction, MAX_SLOTS, Plan, Rule, Scratch};

/// Raised with every change to the layout.
const VERSION: u8 = 7;

/// The most bytes a plan may take. Fits into a packet of the launcher and of a zygote with room for the rest.
pub const MAX_PLAN_BYTES: usize = 48 * 1024;

/// The most rules of one domain.
const MAX_RULES: usize = 512;

/// The most instructions that the kernel takes (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;

/// It is no plan of this version, or too large a one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not a plan of confinement, or too large a one")
    }
}

impl std::error::Error for Malformed {}

impl Plan {
    /// The plan as bytes; fails when it has too many rules or instructions, or is larger than [`MAX_PLAN_BYTES`].
    pub fn encode(&self) -> Result<Vec<u8>, Malformed> {
        let mut bytes = vec![VERSION];
        put32(&mut bytes, self.namespaces);
        bytes.push(u8::from(self.born_nested));
        put_text(&mut bytes, self.root.as_ref().map_or(&b""[..], |root| root.to_bytes()))?;
        bytes.push(u8::from(self.fixtures.is_some()));
        if let Some(Fixtures { home, tmp }) = &self.fixtures {
            put_text(&mut bytes, home.to_bytes())?;
            put_text(&mut bytes, tmp.as_ref().map_or(&b""[..], |tmp| tmp.to_bytes()))?;
        }
        bytes.push(u8::from(self.scratch.is_some()));
        if let Some(Scratch { path, bytes: most_bytes, files, contents, cache }) = &self.scratch {
            put_text(&mut bytes, path.to_bytes())?;
            put64(&mut bytes, *most_bytes);
            put64(&mut bytes, *files);
            match contents {
                Contents::Later => bytes.push(0),
                Contents::Slots(count) => {
                    bytes.push(1);
                    put_count(&mut bytes, *count as usize, MAX_SLOTS as usize)?;
                }
                Contents::RunFolder { name, packages, is_shown } => {
                    bytes.extend([2, u8::from(*is_shown)]);
                    put_text(&mut bytes, name.to_bytes())?;
                    put_text(&mut bytes, packages.as_ref().map_or(&b""[..], |packages| packages.to_bytes()))?;
                }
            }
            bytes.push(u8::from(cache.is_some()));
            if let Some(CacheLink { folder, name, target }) = cache {
                for text in [folder, name, target] {
                    put_text(&mut bytes, text.to_bytes())?;
                }
            }
        }
        bytes.push(u8::from(self.identity.is_some()));
        put32(&mut bytes, self.identity.unwrap_or(0));
        bytes.push(u8::from(self.tasks.is_some()));
        put32(&mut bytes, self.tasks.unwrap_or(0));
        put64(&mut bytes, self.capabilities);
        bytes.push(u8::from(self.landlock.is_some()));
        if let Some(domain) = &self.landlock {
            for mask in [domain.handled_files, domain.handled_network, domain.scoped, domain.own_proc] {
                put64(&mut bytes, mask);
            }
            put_count(&mut bytes, domain.rules.len(), MAX_RULES)?;
            for rule in &domain.rules {
                put64(&mut bytes, rule.access);
                bytes.push(u8::from(rule.needed));
                put_text(&mut bytes, rule.path.as_bytes())?;
            }
        }
        put_count(&mut bytes, self.seccomp.len(), MAX_INSTRUCTIONS)?;
        for step in &self.seccomp {
            bytes.extend_from_slice(&step.code.to_le_bytes());
            bytes.extend_from_slice(&[step.jump_if, step.jump_else]);
            put32(&mut bytes, step.operand);
        }
        bytes.push(u8::from(self.listener));
        if bytes.len() > MAX_PLAN_BYTES { Err(Malformed) } else { Ok(bytes) }
    }

    /// Reads a plan.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if bytes.len() > MAX_PLAN_BYTES || reader.byte()? != VERSION {
            return Err(Malformed);
        }
        let namespaces = reader.u32()?;
        let born_nested = reader.flag()?;
        let root = Some(reader.text()?).filter(|root| !root.is_empty());
        let fixtures = if reader.flag()? { Some(reader.fixtures()?) } else { None };
        let scratch = if reader.flag()? { Some(reader.scratch()?) } else { None };
        let has_identity = reader.flag()?;
        let identity = reader.u32()?;
        let has_tasks = reader.flag()?;
        let tasks = reader.u32()?;
        let capabilities = reader.u64()?;
        let landlock = if reader.flag()? { Some(reader.domain()?) } else { None };
        let count = reader.count(MAX_INSTRUCTIONS)?;
        let seccomp = (0..count).map(|_| reader.instruction()).collect::<Result<_, _>>()?;
        let listener = reader.flag()?;
        if !reader.0.is_empty() {
            return Err(Malformed);
        }
        Ok(Self {
            namespaces,
            born_nested,
            root,
            fixtures,
            scratch,
            identity: has_identity.then_some(identity),
            tasks: has_tasks.then_some(tasks),
            capabilities,
            landlock,
            seccomp,
            listener,
        })
    }
}

fn put32(bytes: &mut Vec<u8>, number: u32) {
    bytes.extend_from_slice(&number.to_le_bytes());
}

fn put64(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_le_bytes());
}

fn put_count(bytes: &mut Vec<u8>, count: usize, most: usize) -> Result<(), Malformed> {
    let number = u32::try_from(count).ok().filter(|_| count <= most).ok_or(Malformed)?;
    put32(bytes, number);
    Ok(())
}

fn put_text(bytes: &mut Vec<u8>, text: &[u8]) -> Result<(), Malformed> {
    put_count(bytes, text.len(), MAX_PLAN_BYTES)?;
    bytes.extend_from_slice(text);
    Ok(())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], Malformed> {
        self.take(LENGTH)?.try_into().map_err(|_| Malformed)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn count(&mut self, most: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.u32()?).map_err(|_| Malformed)?;
        if count > most { Err(Malformed) } else { Ok(count) }
    }

    fn domain(&mut self) -> Result<Domain, Malformed> {
        let (handled_files, handled_network) = (self.u64()?, self.u64()?);
        let (scoped, own_proc) = (self.u64()?, self.u64()?);
        let count = self.count(MAX_RULES)?;
        let rules = (0..count).map(|_| self.rule()).collect::<Result<_, _>>()?;
        Ok(Domain { handled_files, handled_network, scoped, own_proc, rules })
    }

    fn fixtures(&mut self) -> Result<Fixtures, Malformed> {
        let home = self.text()?;
        Ok(Fixtures { home, tmp: Some(self.text()?).filter(|tmp| !tmp.is_empty()) })
    }

    fn scratch(&mut self) -> Result<Scratch, Malformed> {
        let (path, bytes, files) = (self.text()?, self.u64()?, self.u64()?);
        let contents = match self.byte()? {
            0 => Contents::Later,
            1 => Contents::Slots(Some(self.u32()?).filter(|count| *count <= MAX_SLOTS).ok_or(Malformed)?),
            2 => {
                let (is_shown, name) = (self.flag()?, self.text()?);
                let packages = Some(self.text()?).filter(|packages| !packages.is_empty());
                Contents::RunFolder { name, packages, is_shown }
            }
            _ => return Err(Malformed),
        };
        let cache = if self.flag()? { Some(self.cache_link()?) } else { None };
        Ok(Scratch { path, bytes, files, contents, cache })
    }

    fn cache_link(&mut self) -> Result<CacheLink, Malformed> {
        Ok(CacheLink { folder: self.text()?, name: self.text()?, target: self.text()? })
    }

    fn rule(&mut self) -> Result<Rule, Malformed> {
        let (access, needed) = (self.u64()?, self.flag()?);
        Ok(Rule { path: self.text()?, access, needed })
    }

    fn text(&mut self) -> Result<CString, Malformed> {
        let length = self.count(MAX_PLAN_BYTES)?;
        CString::new(self.take(length)?).map_err(|_| Malformed)
    }

    fn instruction(&mut self) -> Result<Instruction, Malformed> {
        let code = u16::from_le_bytes(self.array()?);
        let [jump_if, jump_else] = self.array()?;
        Ok(Instruction { code, jump_if, jump_else, operand: self.u32()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Plan {
        Plan {
            namespaces: 7,
            born_nested: true,
            root: Some(c"/tmp/root".into()),
            fixtures: Some(Fixtures { home: c"/work".into(), tmp: Some(c"/tmp/runs/a/tmp".into()) }),
            scratch: Some(Scratch {
                path: c"/tmp/runs".into(),
                bytes: 1 << 40,
                files: 9,
                contents: Contents::RunFolder {
                    name: c"a".into(),
                    packages: Some(c"/tmp/tree".into()),
                    is_shown: true,
                },
                cache: Some(CacheLink {
                    folder: c"cache".into(),
                    name: c"v22-0".into(),
                    target: c"/tmp/cache".into(),
                }),
            }),
            identity: Some(1_879_048_192),
            tasks: Some(300),
            capabilities: 1 << 7,
            landlock: Some(Domain {
                handled_files: 1,
                handled_network: 2,
                scoped: 3,
                own_proc: 4,
                rules: vec![
                    Rule { path: c"/usr/lib".into(), access: 5, needed: false },
                    Rule { path: c"/x \xff".into(), access: 6, needed: true },
                ],
            }),
            listener: true,
            seccomp: vec![Instruction { code: 6, jump_if: 1, jump_else: 2, operand: 0x7fff_0000 }],
        }
    }

    #[test]
    fn a_plan_survives_its_bytes() {
        let with = |contents| {
            let scratch = Scratch { path: c"/".into(), bytes: 1, files: 2, contents, cache: None };
            Plan { scratch: Some(scratch), ..Plan::default() }
        };
        let own = Contents::RunFolder { name: c"a".into(), packages: None, is_shown: false };
        let others = [Contents::Later, Contents::Slots(MAX_SLOTS), own].map(with);
        let shared = Fixtures { home: c"/".into(), tmp: None };
        let sharing = Plan { fixtures: Some(shared), ..Plan::default() };
        for plan in [Plan::default(), full(), sharing].into_iter().chain(others) {
            assert_eq!(Plan::decode(&plan.encode().unwrap()), Ok(plan));
        }
    }

    #[test]
    fn damaged_bytes_are_refused_or_another_plan_but_no_panic() {
        let bytes = full().encode().unwrap();
        for end in 0..bytes.len() {
            assert_eq!(Plan::decode(&bytes[..end]), Err(Malformed));
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            let _ = Plan::decode(&damaged);
        }
        assert_eq!(Plan::decode(&[bytes.as_slice(), &[0]].concat()), Err(Malformed));
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let rule = Rule { path: c"/".into(), access: 1, needed: false };
        let domain = Domain { rules: vec![rule; MAX_RULES + 1], ..Domain::default() };
        assert_eq!(Plan { landlock: Some(domain), ..Plan::default() }.encode(), Err(Malformed));
        let contents = Contents::Slots(MAX_SLOTS + 1);
        let scratch = Scratch { path: c"/".into(), bytes: 1, files: 2, contents, cache: None };
        assert_eq!(Plan { scratch: Some(scratch), ..Plan::default() }.encode(), Err(Malformed));
        let step = Instruction { code: 0, jump_if: 0, jump_else: 0, operand: 0 };
        assert_eq!(
            Plan { seccomp: vec![step; MAX_INSTRUCTIONS + 1], ..Plan::default() }.encode(),
            Err(Malformed)
        );
    }
}
