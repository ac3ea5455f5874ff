// SPDX-License-Identifier: Apache-2.0

//! Settings from the environment, read once.
//!
//! | variable | meaning |
//! |---|---|
//! | `BEELINE_HOSTSTACK` | `off` leaves everything to the kernel |
//! | `BEELINE_HOSTSTACK_INCLUDE` | `PREFIX[:PORTS]`, comma-separated: servers on loopback that are reached by rings |
//! | `BEELINE_HOSTSTACK_EXCLUDE` | the same: servers that stay on the kernel; goes first |
//! | `BEELINE_HOSTSTACK_RING` | octets of each ring, a power of two from 4096 to 1048576 |
//! | `BEELINE_HOSTSTACK_SESSIONS` | most connections on rings in one process |
//! | `BEELINE_HOSTSTACK_AFTER` | operations after which a connection asks for rings, also if it has not earned them |
//!
//! A prefix of IPv6 is in brackets: `[fd00::]/8:80`. Ports are one, or a range `8000-8999`.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use alloc::{format, vec};
use beeline_ring::Layout;
use core::ffi::CStr;
use core::net::{IpAddr, SocketAddr};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

pub struct Config {
    pub enabled: bool,
    /// None has what a connection has moved decide.
    pub ring: Option<u32>,
    pub sessions: usize,
    /// None has connections earn rings.
    pub after: Option<u32>,
    include: Vec<Rule>,
    exclude: Vec<Rule>,
}

/// A set of servers.
#[derive(Debug, PartialEq)]
struct Rule {
    network: IpAddr,
    bits: u8,
    ports: (u16, u16),
}

/// get() acquires what it has released: the settings are complete.
static CONFIG: AtomicPtr<Config> = AtomicPtr::new(null_mut());

/// Reads the environment at the first call. A value that cannot be read is reported on standard error,
/// and leaves everything to the kernel: a typing error must not change who may reach whom.
pub fn get() -> &'static Config {
    let known = CONFIG.load(Ordering::Acquire);
    // SAFETY: what is published is never freed.
    if let Some(known) = unsafe { known.as_ref() } {
        return known;
    }
    let read = Config::read(variable).unwrap_or_else(|complaint| {
        crate::sys::report(&complaint);
        Config { enabled: false, ..Config::default() }
    });
    let read = Box::leak(Box::new(read));
    // Another thread may have been faster; both have read the same.
    CONFIG.store(read, Ordering::Release);
    read
}

/// Returns a variable of the program's environment.
fn variable(name: &str) -> Option<String> {
    let name = format!("{name}\0");
    // SAFETY: the name ends with a zero octet.
    let value = unsafe { libc::getenv(name.as_ptr().cast()) };
    // SAFETY: a value of the environment ends with a zero octet.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, ring: None, sessions: 1024, after: None, include: vec![], exclude: vec![] }
    }
}

impl Config {
    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut config = Self::default();
        match variable("BEELINE_HOSTSTACK").as_deref() {
            None | Some("" | "on") => {}
            Some("off") => config.enabled = false,
            Some(other) => return Err(format!("BEELINE_HOSTSTACK={other}: write on or off")),
        }
        if let Some(text) = variable("BEELINE_HOSTSTACK_RING") {
            let ring = number("BEELINE_HOSTSTACK_RING", &text)?;
            config.ring = Some(ring);
            if !ring.is_power_of_two() || !(Layout::SMALLEST..=Layout::LARGEST).contains(&ring) {
                return Err(format!("BEELINE_HOSTSTACK_RING={text}: write a power of two from 4096 to 1048576"));
            }
        }
        if let Some(text) = variable("BEELINE_HOSTSTACK_SESSIONS") {
            config.sessions = number("BEELINE_HOSTSTACK_SESSIONS", &text)? as usize;
        }
        if let Some(text) = variable("BEELINE_HOSTSTACK_AFTER") {
            config.after = Some(number("BEELINE_HOSTSTACK_AFTER", &text)?.max(1));
        }
        config.include = rules("BEELINE_HOSTSTACK_INCLUDE", variable("BEELINE_HOSTSTACK_INCLUDE"))?;
        config.exclude = rules("BEELINE_HOSTSTACK_EXCLUDE", variable("BEELINE_HOSTSTACK_EXCLUDE"))?;
        Ok(config)
    }

    /// Returns whether connections to this server may use rings.
    pub fn admits(&self, server: SocketAddr) -> bool {
        let address = server.ip().to_canonical();
        let matches = |rules: &[Rule]| rules.iter().any(|r| r.contains(address, server.port()));
        self.enabled && !matches(&self.exclude) && (!address.is_loopback() || matches(&self.include))
    }
}

fn number(name: &str, text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("{name}={text}: write a number"))
}

fn rules(name: &str, text: Option<String>) -> Result<Vec<Rule>, String> {
    let text = text.unwrap_or_default();
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| Rule::parse(part).ok_or_else(|| format!("{name}: {part}: write PREFIX[:PORTS]"))).collect()
}

impl Rule {
    /// Reads `10.0.0.0/8`, `127.0.0.1:15001`, `[::1]:80-89` or `[fd00::]/8`.
    fn parse(text: &str) -> Option<Self> {
        let (network, rest) = match text.strip_prefix('[') {
            Some(inner) => inner.split_once(']')?,
            None => text.split_at(text.find(['/', ':']).unwrap_or(text.len())),
        };
        let network: IpAddr = network.parse().ok()?;
        let (prefix, ports) = rest.split_once(':').map_or((rest, None), |(prefix, ports)| (prefix, Some(ports)));
        let most = if network.is_ipv4() { 32 } else { 128 };
        let bits = match prefix.strip_prefix('/') {
            Some(bits) => bits.parse().ok().filter(|&bits| bits <= most)?,
            None if prefix.is_empty() => most,
            None => return None,
        };
        Some(Self { network, bits, ports: ports.map_or(Some((0, u16::MAX)), port_range)? })
    }

    fn contains(&self, address: IpAddr, port: u16) -> bool {
        self.network.is_ipv4() == address.is_ipv4()
            && (self.ports.0..=self.ports.1).contains(&port)
            && (number_of(self.network) ^ number_of(address))
                .checked_shr(128 - u32::from(self.bits_of_128()))
                .is_none_or(|difference| difference == 0)
    }

    fn bits_of_128(&self) -> u8 {
        self.bits + if self.network.is_ipv4() { 96 } else { 0 }
    }
}

fn port_range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (first.parse().ok()?, last.parse().ok()?);
    (range.0 <= range.1).then_some(range)
}

fn number_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Config, String> {
        Config::read(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn loopback_stays_on_the_kernel_unless_included() {
        let config = with(&[("BEELINE_HOSTSTACK_INCLUDE", "127.0.0.1:15001, [::1]/128:80-89")]).unwrap();
        for (server, admitted) in [
            ("10.0.0.1:80", true),
            ("[fd00::1]:80", true),
            ("127.0.0.1:80", false),
            ("[::1]:79", false),
            ("127.0.0.1:15001", true),
            ("[::ffff:127.0.0.1]:15001", true),
            ("127.0.0.2:15001", false),
            ("[::1]:85", true),
            ("127.0.0.1:15002", false),
            ("[::1]:90", false),
        ] {
            assert_eq!(
                config.admits(server.parse().unwrap()),
                admitted,
                "a connection to {server} may go by rings (left), want (right)"
            );
        }
    }

    #[test]
    fn an_excluded_server_stays_on_the_kernel() {
        let config = with(&[
            ("BEELINE_HOSTSTACK_INCLUDE", "0.0.0.0/0"),
            ("BEELINE_HOSTSTACK_EXCLUDE", "10.0.0.0/8:443,[fd00::]/8"),
        ])
        .unwrap();
        for (server, admitted) in [
            ("10.1.2.3:443", false),
            ("10.1.2.3:80", true),
            ("11.1.2.3:443", true),
            ("127.0.0.1:1", true),
            ("[fd12::1]:1", false),
            ("[fe80::1]:1", true),
        ] {
            assert_eq!(
                config.admits(server.parse().unwrap()),
                admitted,
                "a connection to {server} may go by rings (left), want (right)"
            );
        }
    }

    #[test]
    fn a_value_that_cannot_be_read_is_an_error() {
        for (name, value) in [
            ("BEELINE_HOSTSTACK", "yes"),
            ("BEELINE_HOSTSTACK_RING", "65537"),
            ("BEELINE_HOSTSTACK_SESSIONS", "many"),
            ("BEELINE_HOSTSTACK_INCLUDE", "10.0.0.0/33"),
            ("BEELINE_HOSTSTACK_INCLUDE", "10.0.0.0:90-80"),
            ("BEELINE_HOSTSTACK_EXCLUDE", "fd00::/8"),
        ] {
            let error = with(&[(name, value)]).err().unwrap_or_default();
            assert!(
                error.contains(name),
                "{name}={value} is to be refused with its name, the error: {error:?} (empty: accepted)"
            );
        }
    }
}
