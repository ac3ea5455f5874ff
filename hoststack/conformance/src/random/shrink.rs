// SPDX-License-Identifier: Apache-2.0

//! A failing program becomes a short one: steps are left out as long as it still fails.

use super::compare;
use super::step::Program;
use std::time::{Duration, Instant};

/// Shrinking takes no longer.
const LIMIT: Duration = Duration::from_secs(120);

pub fn shrink(mut program: Program, library: &str) -> Program {
    let begun = Instant::now();
    let mut count = program.0.len() / 2;
    while count > 0 && begun.elapsed() < LIMIT {
        let mut at = program.0.len();
        let mut is_shorter = false;
        while at > 0 && begun.elapsed() < LIMIT {
            let from = at.saturating_sub(count);
            let mut shorter = program.clone();
            shorter.0.drain(from..at.min(program.0.len()));
            if compare(&shorter, library).1.is_some() {
                program = shorter;
                is_shorter = true;
            }
            at = from;
        }
        count = if is_shorter { count.min(program.0.len() / 2) } else { count / 2 };
    }
    program
}
