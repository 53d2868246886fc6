//! The report is right where the kernel, a container or a lack of privileges takes layers away, and nothing that it says is in
//! force is let through. Each case runs this very test program once more, under what is taken away.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "test code")]

mod process_support;

use std::{ffi::c_long, sync::Arc};

use native_sandbox_confine::{Instruction, Plan};
use native_sandbox_executor::{
    config::{Network, RunFolders, Tier},
    egress::Rules,
    isolation::{Declined, Ground, Places, Quota, Survey, others_reach},
    limits::CallLimits,
    process::{Command, ExitStatus, Spawner},
    store::Store,
};
use process_support::{Mark, launcher, output, soon};
use serde_json::Value;

const MARK: &str = "REPORT ";

/// A filter that answers these calls with these errors.
fn refusing(calls: &[(c_long, i32)]) -> Vec<Instruction> {
    let step = |code: u32, operand, jump_if, jump_else| Instruction {
        code: code.try_into().unwrap(),
        jump_if,
        jump_else,
        operand,
    };
    let mut filter = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for (number, errno) in calls {
        let number = u32::try_from(*number).unwrap();
        filter.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 0, 1));
        filter.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(), 0, 0));
    }
    filter.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
    filter
}

/// The report of a process that this plan takes something from; the text `unknown: …` where it could not find out what there is.
async fn report(plan: Plan) -> Value {
    let program = std::env::current_exe().unwrap();
    let mut env = Mark::new().env();
    env.push(("NSE_INNER".into(), "1".into()));
    let args = ["--exact", "inner", "--nocapture", "--include-ignored"].map(Into::into).to_vec();
    let confinement = Some(Arc::new(plan));
    let command = Command { program, args, env, cwd: "/tmp".into(), confinement, ..Command::default() };
    let (text, status) = output(soon(launcher().spawn(command)).await.unwrap()).await;
    assert_eq!(status, ExitStatus::Code(0), "{text}");
    let line = text.lines().find_map(|line| line.split_once(MARK)).expect("a report").1;
    serde_json::from_str(line).unwrap()
}

/// Not a test by itself: what each of them starts.
#[tokio::test]
#[ignore = "run by the others"]
async fn inner() {
    let folder = tempfile::Builder::new().prefix("nse-degraded-").tempdir_in("/tmp").unwrap();
    let store = Store::open(folder.path()).unwrap();
    let told = match Survey::take(&launcher(), &store).await {
        Ok(survey) => {
            let ground = Ground::new(&survey, Network::Open, Places::default(), None, 64, quota(), None);
            serde_json::to_string(&ground.report).unwrap()
        }
        Err(error) => serde_json::to_string(&format!("unknown: {error}")).unwrap(),
    };
    println!("{MARK}{told}");
    drop(store);
}

fn quota() -> Result<Quota, Declined> {
    Quota::new(&CallLimits::DEFAULT, RunFolders::Memory, None)
}

fn layer<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["layers"].as_array().unwrap().iter().find(|layer| layer["name"] == name).unwrap()
}

#[track_caller]
fn assert_off(report: &Value, names: &[&str]) {
    for name in names {
        let layer = layer(report, name);
        assert_eq!(layer["inForce"], false, "{name}");
        assert!(layer["why"].as_str().is_some_and(|why| !why.is_empty()), "{name}: {layer}");
    }
}

/// Takes nothing but what the filter refuses, and new privileges.
fn with(filter: Vec<Instruction>) -> Plan {
    Plan { capabilities: u64::MAX, seccomp: filter, ..Plan::default() }
}

#[tokio::test]
async fn without_landlock_there_is_the_tier_base_with_what_else_works() {
    let calls = [libc::SYS_landlock_create_ruleset, libc::SYS_landlock_restrict_self];
    for errno in [libc::ENOSYS, libc::EPERM] {
        let report = report(with(refusing(&calls.map(|call| (call, errno))))).await;
        assert_eq!(report["tier"], "base");
        assert_off(&report, &["files", "signals", "mountNamespace"]);
        for name in ["systemCalls", "capabilities", "noNewPrivileges"] {
            assert_eq!(layer(&report, name)["inForce"], true, "{name}");
        }
    }
}

#[tokio::test]
async fn a_landlock_that_is_refused_late_counts_as_none() {
    let report = report(with(refusing(&[(libc::SYS_landlock_restrict_self, libc::EPERM)]))).await;
    assert_eq!(report["tier"], "base");
    assert_off(&report, &["files", "signals"]);
}

#[tokio::test]
async fn without_namespaces_the_tier_confined_stays() {
    let offered = report(Plan { capabilities: u64::MAX, ..Plan::default() }).await;
    let expected = if offered["tier"] == "isolated" { "confined" } else { offered["tier"].as_str().unwrap() };
    for (call, off) in [
        (
            libc::SYS_unshare,
            &["mountNamespace", "ipcNamespace", "utsNamespace", "pidNamespace", "diskQuota"][..],
        ),
        (libc::SYS_mount, &["mountNamespace", "pidNamespace", "diskQuota"][..]),
        (libc::SYS_pivot_root, &["mountNamespace", "pidNamespace", "diskQuota"][..]),
        (libc::SYS_pidfd_open, &["pidNamespace"][..]),
    ] {
        let report = report(with(refusing(&[(call, libc::EPERM)]))).await;
        assert_eq!(report["tier"], expected);
        assert_off(&report, off);
        if call == libc::SYS_pidfd_open {
            // And nothing else is given up with it.
            assert_eq!(layer(&report, "mountNamespace"), layer(&offered, "mountNamespace"));
            assert_eq!(layer(&report, "diskQuota")["inForce"], layer(&offered, "diskQuota")["inForce"]);
        }
    }
}

/// Before this was told from a refusal, each of these made all functions of the process run unconfined, without a word.
#[tokio::test]
async fn what_may_pass_is_no_word_of_the_kernels_about_a_layer() {
    let offered = report(Plan { capabilities: u64::MAX, ..Plan::default() }).await;
    let mut calls = vec![
        (libc::SYS_landlock_create_ruleset, libc::ENOMEM),
        (libc::SYS_landlock_restrict_self, libc::E2BIG),
        (libc::SYS_seccomp, libc::ENOMEM),
        (libc::SYS_capset, libc::EAGAIN),
    ];
    if layer(&offered, "mountNamespace")["inForce"] == true {
        calls.extend([
            (libc::SYS_unshare, libc::ENOMEM),
            (libc::SYS_mount, libc::ENOSPC),
            (libc::SYS_pivot_root, libc::EBUSY),
            (libc::SYS_pidfd_open, libc::EMFILE),
            (libc::SYS_setns, libc::ENOMEM),
            (libc::SYS_memfd_create, libc::ENFILE),
        ]);
    }
    if layer(&offered, "privateUser")["inForce"] == true {
        calls.push((libc::SYS_setresuid, libc::EAGAIN));
    }
    for (call, errno) in calls {
        // The older way to a filter is to fail as well.
        let both = [(call, errno), (libc::SYS_prctl, errno)];
        let refused = if call == libc::SYS_seccomp { seccomp_refused(&both) } else { refusing(&both[..1]) };
        let told = report(with(refused)).await;
        let text = told.as_str().unwrap_or_else(|| panic!("call {call}, {errno}: tier {}", told["tier"]));
        assert!(text.starts_with("unknown: "), "{text}");
    }
}

/// As [`refusing`] for the first, and for `prctl(PR_SET_SECCOMP)` alone.
fn seccomp_refused([(seccomp, errno), (prctl, _)]: &[(c_long, i32); 2]) -> Vec<Instruction> {
    let step = |code: u32, operand, jump_if, jump_else| Instruction {
        code: code.try_into().unwrap(),
        jump_if,
        jump_else,
        operand,
    };
    let number = |call: &c_long| u32::try_from(*call).unwrap();
    let refuse = step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(), 0, 0);
    let compare = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    vec![
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(compare, number(seccomp), 0, 1),
        refuse,
        step(compare, number(prctl), 0, 3),
        // The first argument: low half.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 16, 0, 0),
        step(compare, libc::PR_SET_SECCOMP.unsigned_abs(), 0, 1),
        refuse,
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ]
}

/// A limit of namespaces that an operator has set to none answers as one that is reached for now; what it is set to tells which.
#[tokio::test]
async fn a_reached_limit_of_namespaces_passes() {
    let offered = report(Plan { capabilities: u64::MAX, ..Plan::default() }).await;
    if layer(&offered, "ipcNamespace")["inForce"] != true {
        return;
    }
    let told = report(with(refusing(&[(libc::SYS_unshare, libc::ENOSPC)]))).await;
    assert!(told.as_str().is_some_and(|text| text.contains("unshare")), "{told}");
}

#[tokio::test]
async fn where_a_zygote_could_not_come_back_its_workers_share_its_namespace_and_that_is_said() {
    let offered = report(Plan { capabilities: u64::MAX, ..Plan::default() }).await;
    if layer(&offered, "pidNamespace")["inForce"] != true {
        return;
    }
    for call in [libc::SYS_setns, libc::SYS_memfd_create] {
        let report = report(with(refusing(&[(call, libc::EPERM)]))).await;
        assert_eq!(report["tier"], offered["tier"]);
        let pids = layer(&report, "pidNamespace");
        assert_eq!(pids["inForce"], true);
        let why = pids["why"].as_str().unwrap();
        assert!(why.contains("forked are in their zygote's") && why.contains("not permitted"), "{why}");
    }
    let why = layer(&offered, "pidNamespace")["why"].as_str().unwrap();
    assert!(why.starts_with("one for each worker, but for those of a tree's zygote"), "{why}");
}

#[tokio::test]
async fn where_the_newer_way_to_a_filter_is_refused_the_older_is_taken() {
    let calls = [(libc::SYS_seccomp, libc::EACCES)];
    let report = report(with(refusing(&calls))).await;
    assert_eq!(layer(&report, "systemCalls")["inForce"], true);
}

#[tokio::test]
async fn an_unprivileged_user_has_no_users_to_give_but_all_else() {
    let program = std::env::current_exe().unwrap();
    if !rustix::process::geteuid().is_root() || !others_reach(&program) {
        // Then the other tests are those of an unprivileged user, or nobody else can run this program.
        return;
    }
    let all = report(Plan { capabilities: u64::MAX, ..Plan::default() }).await;
    let report = report(Plan { identity: Some(1_900_000_000), ..Plan::default() }).await;
    assert_off(&report, &["privateUser"]);
    assert_eq!(report["tier"], all["tier"]);
}

#[test]
fn the_report_of_a_tier_is_what_requirements_are_measured_by() {
    let ground = Ground::new(&Survey::default(), Network::Open, Places::default(), None, 64, quota(), None);
    assert_eq!(ground.report.tier, Tier::Base);
    let text = ground.report.objection(Some(Tier::Confined), Network::Open, &Rules::default()).unwrap();
    assert!(text.contains("files") && text.contains("systemCalls"), "{text}");
}
