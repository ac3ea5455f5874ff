// SPDX-License-Identifier: Apache-2.0

//! Random programs of socket calls, each run on the kernel and on rings: their results have to be equal.
//!
//! The kernel's own results may depend on time, as when a busy CPU delivers a segment later. So a program whose results
//! differ is run again: it fails if rings have a result that the kernel never has. Then steps are left out as long as
//! it still fails, and what is left is printed.

mod calls;
mod events;
mod processes;
mod shrink;
mod step;
mod transfers;
mod world;

use self::calls::CALLS;
use self::step::Program;
use self::world::World;
use crate::sys::note;
use std::collections::BTreeSet;
use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A program that has not ended by then hangs.
const LIMIT: Duration = Duration::from_secs(15);

/// So often the kernel runs a program whose results differ.
const TRIES: usize = 12;

/// So often rings run it, of which one has to differ again: on a busy machine threads may be late.
const AGAIN: usize = 4;

/// Programs that run at the same time. Most wait most of their time.
const AT_ONCE: usize = 4;

/// So many failing programs are shown.
const SHOWN: u64 = 10;

/// Runs a program in this process, and writes a line for each step.
pub fn run_here(text: &str) {
    let program: Program = text.parse().expect("a program");
    let mut world = World::new();
    let step = |world: &mut World, i: usize| {
        let Some(step) = program.0.get(i) else { return };
        note(i, (CALLS[step.call].run)(world, step.numbers));
    };
    let mut i = 0;
    while i < program.0.len() {
        step(&mut world, i);
        i += 1;
        i += processes::children(&mut world, |world, at| step(world, i + at));
    }
    if let Some([attached, ..]) = crate::sys::counters() {
        eprintln!("rings {attached}");
    }
}

/// Says when to stop.
#[derive(Clone, Copy)]
pub enum Bound {
    Programs(u64),
    Time(Duration),
}

/// Compares programs from a seed on. It returns how many passed, how many failed, and how many were on rings.
pub fn run(library: &str, seed: u64, bound: Bound) -> (u64, u64, u64) {
    let begun = Instant::now();
    let (next, failed, on_rings, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let one = || loop {
        let n = next.fetch_add(1, Ordering::Relaxed);
        let is_over = match bound {
            Bound::Programs(most) => n >= most,
            Bound::Time(most) => begun.elapsed() > most,
        };
        if is_over || failed.load(Ordering::Relaxed) >= SHOWN {
            return;
        }
        let program = Program::draw(seed + n);
        let (used, difference) = compare(&program, library);
        on_rings.fetch_add(u64::from(used), Ordering::Relaxed);
        done.fetch_add(1, Ordering::Relaxed);
        if difference.is_some() {
            failed.fetch_add(1, Ordering::Relaxed);
            let short = shrink::shrink(program, library);
            let text = compare(&short, library).1.or(difference).unwrap_or_default();
            println!("{text}program:\n{short}FAIL seed {}", seed + n);
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(one))));
    let failed = failed.into_inner();
    (done.into_inner() - failed, failed, on_rings.into_inner())
}

/// Returns whether the program was on rings, and a difference that is not the kernel's own.
fn compare(program: &Program, library: &str) -> (bool, Option<String>) {
    let kernel = results(program, None);
    let rings = results(program, Some(library));
    let used = rings.used;
    if kernel.lines == rings.lines {
        return (used, None);
    }
    let known: BTreeSet<String> = (0..TRIES).map(|_| results(program, None).lines).chain([kernel.lines]).collect();
    let again = || (0..AGAIN).any(|_| !known.contains(&results(program, Some(library)).lines));
    if known.contains(&rings.lines) || !again() {
        return (used, None);
    }
    let nearest = known.iter().max_by_key(|one| common(one, &rings.lines)).expect("one at least");
    (used, Some(crate::difference(nearest, &rings.lines) + "\n"))
}

/// Returns the number of lines at the start that two results share.
fn common(a: &str, b: &str) -> usize {
    a.lines().zip(b.lines()).take_while(|(x, y)| x == y).count()
}

struct Results {
    lines: String,
    used: bool,
}

fn results(program: &Program, library: Option<&str>) -> Results {
    let mut command = crate::this_program(library);
    let mut child = command.args(["--program"]).stdin(Stdio::piped()).spawn().expect("this program");
    write!(child.stdin.take().expect("a pipe"), "{program}").expect("the program's text");
    match crate::finish(child, LIMIT) {
        Ok(output) => {
            let mut lines = crate::text(&output.stdout);
            let errors = crate::text(&output.stderr);
            if !output.status.success() {
                lines += &format!("{}\n{errors}", output.status);
            }
            let used = errors.lines().any(|line| line.starts_with("rings ") && line != "rings 0");
            Results { lines, used }
        }
        Err(complaint) => Results { lines: complaint, used: false },
    }
}
