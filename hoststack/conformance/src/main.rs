// SPDX-License-Identifier: Apache-2.0

//! Runs each case of the socket API twice, in a process of its own: on the kernel, and with the preload library. Both
//! have to write the same lines.
//!
//! `beeline-conformance --library PATH [CASE...]`
//! `beeline-conformance --random PATH --seed NUMBER --programs NUMBER`, or `--lasting 5m`: random programs ([`random`])

mod cases;
mod random;
mod sys;

use cases::Expects;
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

/// A case that is not done by then hangs.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--case", name] => run_case(name),
        ["--program"] => run_program(),
        ["--random", library, "--seed", seed, bound, number] => run_random(library, seed, bound, number),
        ["--library", library, ref wanted @ ..] => run_all(library, wanted),
        _ => {
            eprintln!("usage: beeline-conformance --library PATH [CASE...]");
            eprintln!("       beeline-conformance --random PATH --seed NUMBER --programs NUMBER|--lasting TIME");
            ExitCode::from(2)
        }
    }
}

/// Runs the random program at standard input.
fn run_program() -> ExitCode {
    match std::io::read_to_string(std::io::stdin()) {
        Ok(text) => random::run_here(&text),
        Err(error) => panic!("standard input: {error}"),
    }
    ExitCode::SUCCESS
}

/// Compares random programs. Seed 0 is one from the clock.
fn run_random(library: &str, seed: &str, bound: &str, number: &str) -> ExitCode {
    let bound = match bound {
        "--programs" => number.parse().ok().map(random::Bound::Programs),
        "--lasting" => lasting(number).map(random::Bound::Time),
        _ => None,
    };
    let (Ok(seed), Some(bound)) = (seed.parse::<u64>(), bound) else { return ExitCode::from(2) };
    let now = || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_secs() << 20);
    let seed = if seed == 0 { now() } else { seed };
    println!("seed {seed}");
    let (passed, failed, on_rings) = random::run(library, seed, bound);
    println!("random socket calls, {on_rings} programs on rings: {passed} passed, 0 skipped, {failed} failed");
    ExitCode::from(u8::from(failed > 0 || on_rings == 0))
}

/// Runs one case in this process. It writes what it saw to standard output, and what the library did to
/// standard error.
fn run_case(name: &str) -> ExitCode {
    let Some(case) = cases::ALL.iter().find(|case| case.name == name) else {
        eprintln!("there is no case {name}");
        return ExitCode::from(2);
    };
    (case.run)();
    if let Some([attached, received, sent, violations]) = sys::counters() {
        eprintln!("rings {attached} {received} {sent} {violations}");
    }
    ExitCode::SUCCESS
}

/// Returns a time as Go's tests take it, such as 90s or 5m.
fn lasting(text: &str) -> Option<Duration> {
    let unit = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        _ => return None,
    };
    Some(Duration::from_secs(text[..text.len() - 1].parse::<u64>().ok()? * unit))
}

fn run_all(library: &str, wanted: &[&str]) -> ExitCode {
    let begun = Instant::now();
    let (mut passed, mut failed) = (0, 0);
    for case in cases::ALL.iter().filter(|case| wanted.is_empty() || wanted.contains(&case.name)) {
        match compare(case, library) {
            Ok(()) => passed += 1,
            Err(complaint) => {
                failed += 1;
                println!("{complaint}\nFAIL {}", case.name);
            }
        }
    }
    let seconds = begun.elapsed().as_secs();
    println!("socket API: {passed} passed, 0 skipped, {failed} failed, in {seconds} s");
    ExitCode::from(u8::from(failed > 0 || passed == 0))
}

/// Runs a case both ways.
fn compare(case: &cases::Case, library: &str) -> Result<(), String> {
    let kernel = finish(start(case.name, None)?, LIMIT)?;
    if !kernel.status.success() {
        return Err(format!("on the kernel: {}\n{}", kernel.status, text(&kernel.stderr)));
    }
    let rings = finish(start(case.name, Some(library))?, LIMIT)?;
    if !rings.status.success() {
        return Err(format!("on rings: {}\n{}", rings.status, text(&rings.stderr)));
    }
    if kernel.stdout != rings.stdout {
        return Err(difference(&text(&kernel.stdout), &text(&rings.stdout)));
    }
    used(case, &text(&rings.stderr))
}

/// Checks that the case really was on rings, or was not, as it says.
fn used(case: &cases::Case, stderr: &str) -> Result<(), String> {
    let counters = stderr.lines().find_map(|line| line.strip_prefix("rings "));
    let counters: Vec<u64> = counters.unwrap_or("").split(' ').filter_map(|n| n.parse().ok()).collect();
    let [attached, received, sent, violations] = counters[..] else {
        return Err(format!("the library was not loaded:\n{stderr}"));
    };
    let right = match case.expects {
        Expects::Rings => attached > 0 && received + sent > 0 && violations == 0,
        Expects::Kernel => attached == 0,
        Expects::Violations => attached > 0 && violations > 0,
        Expects::OneOffer => attached == 1,
    };
    let want = match case.expects {
        Expects::Rings => "a connection on rings, with octets, and no violation",
        Expects::Kernel => "no connection on rings",
        Expects::Violations => "a connection on rings, and the peer's violation counted",
        Expects::OneOffer => "exactly one end on rings",
    };
    right.then_some(()).ok_or(format!(
        "the library counted {attached} ends on rings, {received} octets received, {sent} sent, {violations} violations; want {want}"
    ))
}

fn start(name: &str, library: Option<&str>) -> Result<std::process::Child, String> {
    let mut command = this_program(library);
    match cases::EARNING.contains(&name) {
        true => command.env_remove("BEELINE_HOSTSTACK_AFTER"),
        false => command.env("BEELINE_HOSTSTACK_AFTER", "1"),
    };
    command.args(["--case", name]).stdin(Stdio::null()).spawn().map_err(|error| format!("{name}: {error}"))
}

/// Returns this program again, with the library or without. Connections have a part on the kernel before rings.
fn this_program(library: Option<&str>) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env("BEELINE_HOSTSTACK_INCLUDE", "127.0.0.0/8,[::1]/128").env("BEELINE_HOSTSTACK_AFTER", "3");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    command
}

fn finish(mut child: std::process::Child, limit: Duration) -> Result<Output, String> {
    let begun = Instant::now();
    loop {
        let ended = child.try_wait().map_err(|error| error.to_string())?.is_some();
        if !ended && begun.elapsed() > limit {
            let _ = child.kill();
            let output = child.wait_with_output().map_err(|error| error.to_string())?;
            return Err(format!("no end after {limit:?}; so far:\n{}", text(&output.stdout)));
        }
        if ended {
            return child.wait_with_output().map_err(|error| error.to_string());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn text(octets: &[u8]) -> String {
    String::from_utf8_lossy(octets).into_owned()
}

/// Shows the first line in which both ways differ.
fn difference(kernel: &str, rings: &str) -> String {
    let (mut a, mut b) = (kernel.lines(), rings.lines());
    let mut before = "the start";
    loop {
        match (a.next(), b.next()) {
            (Some(x), Some(y)) if x == y => before = x,
            (x, y) => {
                let show = |line: Option<&str>| line.unwrap_or("(the end)").to_owned();
                return format!("after: {before}\n  kernel: {}\n  rings:  {}", show(x), show(y));
            }
        }
    }
}
