// SPDX-License-Identifier: Apache-2.0

//! Random programs: lists of steps, each a call with three numbers, from which the call takes its arguments.

use super::calls::CALLS;
use std::fmt;
use std::str::FromStr;

/// Xorshift64 of Marsaglia.
pub struct Draw(u64);

impl Draw {
    /// Mixes the seed (splitmix64), so that seeds next to each other give different sequences.
    pub fn new(seed: u64) -> Self {
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((z ^ (z >> 31)) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: u64) -> u64 {
        (self.next() >> 11) % most
    }
}

/// A call of a program.
#[derive(Clone, PartialEq, Eq)]
pub struct Step {
    pub call: usize,
    pub numbers: [u32; 3],
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [a, b, c] = self.numbers;
        write!(f, "{} {a} {b} {c}", CALLS[self.call].name)
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or("");
        let call = CALLS.iter().position(|call| call.name == name).ok_or(format!("there is no call {name:?}"))?;
        let mut numbers = [0; 3];
        for number in &mut numbers {
            *number =
                words.next().and_then(|word| word.parse().ok()).ok_or(format!("{text:?} has no three numbers"))?;
        }
        Ok(Self { call, numbers })
    }
}

/// The text of a program: a step in each line.
#[derive(Clone)]
pub struct Program(pub Vec<Step>);

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl FromStr for Program {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.lines().filter(|line| !line.is_empty()).map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl Program {
    /// Returns the program of a seed. Most begin on rings, the others on a new connection.
    pub fn draw(seed: u64) -> Self {
        let mut draw = Draw::new(seed);
        let warm = if draw.below(4) > 0 { 1 } else { 0 };
        let open = |connection| Step { call: 0, numbers: [connection, warm, 0] };
        let mut steps = vec![open(0), open(1)];
        for _ in 0..6 + draw.below(40) {
            let numbers = [(); 3].map(|()| draw.below(1_000_000) as u32);
            steps.push(Step { call: pick(&mut draw), numbers });
        }
        Self(steps)
    }
}

/// Takes a call as often as its weight says.
fn pick(draw: &mut Draw) -> usize {
    let mut rest = draw.below(CALLS.iter().map(|call| call.weight).sum());
    for (i, call) in CALLS.iter().enumerate() {
        if rest < call.weight {
            return i;
        }
        rest -= call.weight;
    }
    unreachable!("the weights have a sum")
}
