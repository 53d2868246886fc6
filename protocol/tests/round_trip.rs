//! Every message survives its packet; no packet, however damaged, does more than be refused.

use native_sandbox_protocol::{
    Error, FromLauncher, Limits, MAX_FDS, MAX_PACKET_BYTES, Spawn, Status, Step, ToLauncher, decode_report,
    decode_request, encode_report, encode_request,
};
use proptest::{collection::vec, option, prelude::*};

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..64)
}

fn limits() -> impl Strategy<Value = Limits> {
    (option::of(any::<u64>()), option::of(any::<u64>()), option::of(any::<u64>()), option::of(any::<u64>()))
        .prop_map(|(open_files, file_size_bytes, cpu_seconds, data_bytes)| Limits {
            open_files,
            file_size_bytes,
            cpu_seconds,
            data_bytes,
        })
}

fn request() -> impl Strategy<Value = ToLauncher> {
    let spawn = (
        any::<u64>(),
        bytes(),
        vec(bytes(), 0..8),
        vec((bytes(), bytes()), 0..8),
        bytes(),
        limits(),
        any::<bool>(),
        option::of(bytes()),
        any::<bool>(),
        vec(any::<i32>(), 0..=MAX_FDS),
    )
        .prop_map(|(id, program, args, env, cwd, limits, forks, confinement, in_group, mut fds)| {
            // The group's descriptor is one of those that there is room for.
            fds.truncate(MAX_FDS - usize::from(in_group));
            ToLauncher::Spawn(Spawn {
                id,
                program,
                args,
                env,
                cwd,
                limits,
                forks,
                confinement,
                trial: None,
                in_group,
                fds,
            })
        });
    prop_oneof![
        spawn,
        any::<u64>().prop_map(|id| ToLauncher::Terminate { id }),
        any::<u64>().prop_map(|id| ToLauncher::Kill { id })
    ]
}

fn report() -> impl Strategy<Value = FromLauncher> {
    let status = prop_oneof![any::<i32>().prop_map(Status::Code), any::<i32>().prop_map(Status::Signal)];
    let step = any::<u8>().prop_filter_map("a step", Step::from_code);
    prop_oneof![
        any::<u32>().prop_map(|version| FromLauncher::Ready { version }),
        (any::<u64>(), any::<i32>()).prop_map(|(id, pid)| FromLauncher::Forked { id, pid }),
        any::<u64>().prop_map(|id| FromLauncher::Started { id }),
        (any::<u64>(), step, bytes(), any::<i32>())
            .prop_map(|(id, step, subject, errno)| FromLauncher::SpawnFailed { id, step, subject, errno }),
        (any::<u64>(), status, any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
            |(id, status, cpu_us, max_rss_kib, left_behind)| FromLauncher::Exited {
                id,
                status,
                cpu_us,
                max_rss_kib,
                left_behind
            }
        ),
        any::<u64>().prop_map(|id| FromLauncher::Gone { id }),
    ]
}

proptest! {
    #[test]
    fn requests_survive(message in request()) {
        prop_assert_eq!(decode_request(&encode_request(&message).unwrap()), Ok(message));
    }

    #[test]
    fn reports_survive(message in report()) {
        prop_assert_eq!(decode_report(&encode_report(&message).unwrap()), Ok(message));
    }

    #[test]
    fn garbage_is_refused_or_read_but_never_panics(packet in vec(any::<u8>(), 0..512)) {
        let _ = decode_request(&packet);
        let _ = decode_report(&packet);
    }

    #[test]
    fn a_cut_packet_is_refused(message in request(), cut in any::<prop::sample::Index>()) {
        let packet = encode_request(&message).unwrap();
        let cut = cut.index(packet.len());
        prop_assert_eq!(decode_request(&packet[..cut]), Err(Error::Malformed));
    }

    #[test]
    fn a_packet_with_a_tail_is_refused(message in request(), tail in vec(any::<u8>(), 1..8)) {
        let mut packet = encode_request(&message).unwrap();
        packet.extend(tail);
        prop_assert_eq!(decode_request(&packet), Err(Error::Malformed));
    }
}

#[test]
fn steps_keep_their_codes() {
    for code in 0..=u8::MAX {
        if let Some(step) = Step::from_code(code) {
            assert_eq!(step.code(), code);
            assert!(!step.name().is_empty());
        }
    }
    assert_eq!(Step::from_code(Step::Exec.code()), Some(Step::Exec));
    assert_eq!(Step::from_code(Step::Fixtures.code() + 1), None);
}

#[test]
fn the_limit_of_a_packet_is_exact() {
    let empty = encode_request(&ToLauncher::Spawn(Spawn { program: vec![b'x'; 20_000], ..Spawn::default() }));
    let overhead = empty.unwrap().len() - 20_000;
    let of =
        |size| encode_request(&ToLauncher::Spawn(Spawn { program: vec![b'x'; size], ..Spawn::default() }));
    assert_eq!(of(MAX_PACKET_BYTES - overhead).unwrap().len(), MAX_PACKET_BYTES);
    assert_eq!(of(MAX_PACKET_BYTES - overhead + 1), Err(Error::TooLarge { bytes: MAX_PACKET_BYTES + 1 }));
    assert_eq!(
        decode_request(&vec![0; MAX_PACKET_BYTES + 1]),
        Err(Error::TooLarge { bytes: MAX_PACKET_BYTES + 1 })
    );
}

#[test]
fn too_many_descriptors_are_refused() {
    let message = ToLauncher::Spawn(Spawn { fds: vec![4; MAX_FDS + 1], ..Spawn::default() });
    assert_eq!(encode_request(&message), Err(Error::TooManyFds { count: MAX_FDS + 1 }));
}
