//! Places that the plans of many children name, opened once by their parent.
//!
//! A Landlock rule takes a descriptor of its place. Most rules of a worker are about the system's folders, which are the same for all
//! workers of a zygote, and in the same root.

use std::{
    ffi::{CStr, CString, c_int},
    fs::File,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::FileTypeExt,
    },
};

use crate::plan::{Plan, Rule};

/// Descriptors begin here, above those that Node uses: children get rid of all of them at once.
const FIRST_FD: c_int = 40;

/// More places are looked up by each child.
const MAX_PLACES: usize = 24;

/// What differs from child to child, and changes without a new zygote.
const PROC: &[u8] = b"/proc";

/// Places by their paths, each with an open descriptor. In a child only numbers are read.
#[derive(Debug, Default)]
pub struct Places {
    known: Vec<(CString, Option<OwnedFd>)>,
}

impl Places {
    /// Opens the places of a plan that are not known yet. Not those in `/proc`, nor what has to be there, which is of one call or
    /// tree; nor files, which are replaced while folders stay. A plan with a root of its own names places of that root.
    pub fn look_up(&mut self, plan: &Plan) {
        let Some(domain) = plan.landlock.as_ref().filter(|_| plan.root.is_none()) else { return };
        for Rule { path, needed, .. } in &domain.rules {
            let is_common = !needed && !path.to_bytes().starts_with(PROC);
            if is_common && self.known.len() < MAX_PLACES && self.known.iter().all(|(known, _)| known != path)
            {
                self.known.push((path.clone(), open(path)));
            }
        }
    }

    /// The descriptor of a place.
    pub(crate) fn get(&self, path: &CStr) -> Option<c_int> {
        let (_, place) = self.known.iter().find(|(known, _)| known.as_c_str() == path)?;
        place.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Closes all in a child, which must not use them any more and never drops this.
    pub fn close_in_child(&self) {
        for (_, place) in &self.known {
            if let Some(place) = place {
                // SAFETY: nobody in this process uses it.
                unsafe { libc::close(place.as_raw_fd()) };
            }
        }
    }
}

/// A folder or a device.
fn open(path: &CStr) -> Option<OwnedFd> {
    // SAFETY: a C string; both descriptors are this function's own.
    let place = unsafe {
        let low = libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC);
        if low < 0 {
            return None;
        }
        let high = libc::fcntl(low, libc::F_DUPFD_CLOEXEC, FIRST_FD);
        libc::close(low);
        if high < 0 {
            return None;
        }
        OwnedFd::from_raw_fd(high)
    };
    let file = File::from(place);
    let kind = file.metadata().ok()?.file_type();
    (kind.is_dir() || kind.is_char_device()).then(|| OwnedFd::from(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Domain;

    fn plan(rules: &[(&CStr, bool)]) -> Plan {
        let rules =
            rules.iter().map(|(path, needed)| Rule { path: (*path).into(), access: 4, needed: *needed });
        let domain = Domain { handled_files: 4, rules: rules.collect(), ..Domain::default() };
        Plan { landlock: Some(domain), ..Plan::default() }
    }

    #[test]
    fn folders_and_devices_that_all_children_name_are_opened_once_and_nothing_else_is() {
        let mut places = Places::default();
        let named = [
            (c"/usr", false),
            (c"/dev/null", false),
            (c"/proc/sys", false),
            (c"/etc/passwd", false),
            (c"/not/there", false),
            (c"/tmp", true),
        ];
        places.look_up(&plan(&named));
        let found = named.map(|(path, _)| places.get(path));
        assert!(found[0].is_some_and(|fd| fd >= FIRST_FD) && found[1].is_some());
        assert_eq!(found[2..], [None; 4]);
        places.look_up(&plan(&named));
        assert_eq!(named.map(|(path, _)| places.get(path)), found);
    }

    #[test]
    fn a_plan_with_a_root_of_its_own_names_no_place_of_this_one() {
        let mut places = Places::default();
        places.look_up(&Plan { root: Some(c"/tmp".into()), ..plan(&[(c"/usr", false)]) });
        assert_eq!(places.get(c"/usr"), None);
    }

    #[test]
    fn there_are_no_more_than_so_many() {
        let mut places = Places::default();
        let paths: Vec<CString> =
            (0..MAX_PLACES * 2).map(|n| CString::new(format!("/n{n}")).unwrap()).collect();
        let rules: Vec<(&CStr, bool)> = paths.iter().map(|path| (path.as_c_str(), false)).collect();
        places.look_up(&plan(&rules));
        assert_eq!(places.known.len(), MAX_PLACES);
    }
}
