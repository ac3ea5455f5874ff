// SPDX-License-Identifier: Apache-2.0

//! Programs with the preload library under a mix of loads for a long time: what they have of memory and descriptors
//! before and after it.
//!
//! `beeline-soak --library PATH --lasting 10m --rate 5000 [LOAD...]` starts servers and clients as programs with the
//! library, and prints what each has after a tenth of the time and at the end, while it has no connection. It fails if
//! one has grown, or if a reply was not what the server sends. Loads: short, long, bulk, forked, killed; all without a
//! name.

mod loads;
mod servers;
mod usage;

use loads::Client;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use usage::Usage;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", listener] => number(listener).and_then(|fd| servers::serve(fd).map_err(text)),
        ["serve-forked", listener] => number(listener).and_then(|fd| servers::serve_forked(fd).map_err(text)),
        ["load", "briefly", name, server, forked, time, rate] => prepare(name, [server, forked], rate)
            .and_then(|load| drive(&load, &mut Client::new(), name, number(time)?))
            .map(|_| ()),
        ["load", "noted", name, server, forked, time, rate] => load(name, [server, forked], time, rate),
        ["--library", library, "--lasting", time, "--rate", rate, ref names @ ..] => run(library, time, rate, names),
        _ => Err("usage: beeline-soak --library PATH --lasting TIME --rate CONNECTIONS [LOAD...]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaint) => {
            eprintln!("beeline-soak: {complaint}");
            ExitCode::FAILURE
        }
    }
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text}: write a number"))
}

/// Returns a time as Go's tests take it, such as 90s or 5m.
fn lasting(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600)];
    let found = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (count, seconds) = found.ok_or(format!("{text}: write a time such as 90s or 5m"))?;
    Ok(Duration::from_secs(number::<u64>(count)? * seconds))
}

fn prepare(name: &str, servers: [&str; 2], rate: &str) -> Result<loads::Load, String> {
    let address = |text: &str| text.parse::<SocketAddr>().map_err(|error| format!("{text}: {error}"));
    Ok(loads::Load {
        server: address(servers[0])?,
        forked: address(servers[1])?,
        rate: number(rate)?,
        run: loads::find(name).ok_or(format!("there is no load {name}: {}", loads::NAMES.join(", ")))?,
    })
}

fn drive(load: &loads::Load, client: &mut Client, name: &str, milliseconds: u64) -> Result<u64, String> {
    load.drive(client, Duration::from_millis(milliseconds)).map_err(|error| format!("{name}: {error}"))
}

/// Runs one load in this process: first for a tenth of the time, after which its usage is noted, and then for the rest.
fn load(name: &str, servers: [&str; 2], time: &str, rate: &str) -> Result<(), String> {
    let (load, milliseconds) = (prepare(name, servers, rate)?, number::<u64>(time)?);
    let mut client = Client::new();
    let first = drive(&load, &mut client, name, milliseconds / 10)?;
    let before = Usage::settled(std::process::id());
    let all = first + drive(&load, &mut client, name, milliseconds - milliseconds / 10)?;
    report(name, all, &before, &Usage::settled(std::process::id()))
}

/// Prints what a program had and has; an error if it has grown.
fn report(name: &str, connections: u64, before: &Usage, after: &Usage) -> Result<(), String> {
    let attached = beeline_counters::attached().map_or(String::new(), |n| format!(", {n} got rings"));
    println!("{name}: {connections} connections{attached}\n  before {before}\n  after  {after}");
    match after.has_grown(before) {
        true => Err(format!("{name} has grown")),
        false => Ok(()),
    }
}

struct Program {
    name: String,
    process: Child,
}

/// Runs this program again, with the library.
fn start(library: &str, name: &str, arguments: &[&str]) -> Result<Program, String> {
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).env("LD_PRELOAD", library).env("BEELINE_HOSTSTACK_INCLUDE", "127.0.0.0/8");
    let process = command.stdout(Stdio::piped()).spawn().map_err(text)?;
    Ok(Program { name: name.into(), process })
}

impl Program {
    fn finish(mut self) -> Result<(), String> {
        if let Some(out) = self.process.stdout.take() {
            BufReader::new(out).lines().map_while(Result::ok).for_each(|line| println!("{line}"));
        }
        let status = self.process.wait().map_err(text)?;
        status.success().then_some(()).ok_or(format!("{}: {status}", self.name))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a socket that programs started here inherit.
fn listen() -> Result<(TcpListener, String, String), String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(text)?;
    // SAFETY: fcntl of a descriptor.
    unsafe { libc::fcntl(listener.as_raw_fd(), libc::F_SETFD, 0) };
    let (address, fd) = (listener.local_addr().map_err(text)?.to_string(), listener.as_raw_fd().to_string());
    Ok((listener, address, fd))
}

fn run(library: &str, time: &str, rate: &str, names: &[&str]) -> Result<(), String> {
    let all = lasting(time)?;
    let names = if names.is_empty() { loads::NAMES } else { names };
    let ((one, server, fd), (other, forked, forked_fd)) = (listen()?, listen()?);
    let servers = [
        start(library, "server", &["serve", &fd])?,
        start(library, "server that forks", &["serve-forked", &forked_fd])?,
    ];
    drop((one, other));
    // The servers' own tenth, by clients that end.
    let together = |how, time: Duration| {
        let time = time.as_millis().to_string();
        let start = |name: &&str| start(library, name, &["load", how, name, &server, &forked, &time, rate]);
        let programs = names.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let results: Vec<_> = programs.into_iter().map(Program::finish).collect();
        results.into_iter().collect::<Result<Vec<_>, _>>()
    };
    together("briefly", all / 10)?;
    let usages = || servers.iter().map(|program| Usage::settled(program.process.id())).collect::<Vec<_>>();
    let before = usages();
    together("noted", all)?;
    let after = usages();
    let mut result = Ok(());
    for ((program, before), after) in servers.iter().zip(&before).zip(&after) {
        println!("{}\n  before {before}\n  after  {after}", program.name);
        if after.has_grown(before) {
            result = Err(format!("the {} has grown", program.name));
        }
    }
    result
}
