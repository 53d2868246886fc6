//! The generations of a tree: their names, which of them serves, and when it is time for the next. Pure.
//!
//! A name is `<number>-<random>`. The number counts up, whatever the machine's clock does; the random part keeps apart two that
//! got the same number.

use std::time::{Duration, SystemTime};

/// Digits of the number, so that a listing is in order.
const NUMBER_DIGITS: usize = 10;
/// Hexadecimal digits of the random part.
const RANDOM_DIGITS: usize = 8;
/// How far ahead of this machine's clock a stamp may be before it is taken for nonsense.
const CLOCK_SLACK: Duration = Duration::from_mins(1);

/// The name of the generation that follows those in `names`.
pub(super) fn next_name<'a>(names: impl IntoIterator<Item = &'a str>, random: &str) -> String {
    let last = names.into_iter().filter_map(number_of).max().unwrap_or(0);
    let random = random.get(..RANDOM_DIGITS).unwrap_or(random);
    format!("{:0NUMBER_DIGITS$}-{random}", last.saturating_add(1))
}

/// Of the names in a folder those of generations, the newest first.
pub(super) fn newest_first(names: Vec<String>) -> Vec<String> {
    let mut names: Vec<_> =
        names.into_iter().filter_map(|name| number_of(&name).map(|number| (number, name))).collect();
    names.sort_unstable_by(|a, b| b.cmp(a));
    names.into_iter().map(|(_, name)| name).collect()
}

/// Whether a range that was resolved at `resolved` is to be resolved again. A stamp from the future says nothing: then it is.
pub fn is_due(resolved: SystemTime, now: SystemTime, ttl: Duration) -> bool {
    match now.duration_since(resolved) {
        Ok(age) => age >= ttl,
        Err(ahead) => ahead.duration() > CLOCK_SLACK,
    }
}

fn number_of(name: &str) -> Option<u64> {
    let (number, random) = name.split_once('-')?;
    let is_random = random.len() == RANDOM_DIGITS && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number = number.len() >= NUMBER_DIGITS && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_random && is_number).then(|| number.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RANDOM: &str = "0123abcdef";

    #[test]
    fn names_count_up() {
        let first = next_name([], RANDOM);
        assert_eq!(first, "0000000001-0123abcd");
        assert_eq!(
            next_name([first.as_str(), "lock", "99-x", "0000000009-ffffffff"], RANDOM),
            "0000000010-0123abcd"
        );
    }

    #[test]
    fn the_newest_comes_first_and_strangers_do_not_come() {
        let names = ["0000000002-aaaaaaaa", "x", "0000000010-00000000", "0000000002-bbbbbbbb", ".tmp", "3-1"];
        assert_eq!(
            newest_first(names.map(str::to_owned).to_vec()),
            ["0000000010-00000000", "0000000002-bbbbbbbb", "0000000002-aaaaaaaa"]
        );
    }

    #[test]
    fn a_renewal_is_due_after_the_ttl_and_after_a_clock_gone_wrong() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(1000);
        let (ttl, second) = (Duration::from_mins(5), Duration::from_secs(1));
        assert!(!is_due(now, now, ttl));
        assert!(!is_due(now - ttl + second, now, ttl));
        assert!(is_due(now - ttl, now, ttl));
        assert!(!is_due(now + second, now, ttl));
        assert!(is_due(now + Duration::from_hours(24), now, ttl));
    }

    proptest! {
        #[test]
        fn what_is_named_next_is_the_newest(numbers in proptest::collection::vec(0..u64::from(u32::MAX), 0..8)) {
            let names: Vec<_> = numbers.iter().map(|number| format!("{number:010}-ffffffff")).collect();
            let next = next_name(names.iter().map(String::as_str), RANDOM);
            let sorted = newest_first(names.into_iter().chain([next.clone()]).collect());
            prop_assert_eq!(sorted.first(), Some(&next));
        }
    }
}
