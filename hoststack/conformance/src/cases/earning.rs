// SPDX-License-Identifier: Apache-2.0

//! When connections ask for rings, without a setting: short ones never, long ones after some octets or some time.

use super::bulk::{consume, produce, produce_at_once, Sequence};
use crate::sys::*;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::time::Duration;

/// Returns the number of ends on rings; without the library what the case wants.
fn rings(wanted: u64) -> u64 {
    counters().map_or(wanted, |[attached, ..]| attached)
}

/// Checks the size of the memory of the open connections, with its header of a page.
fn rings_of(octets: usize) {
    if counters().is_none() {
        return;
    }
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let sizes = maps.lines().filter(|line| line.contains("/memfd:beeline-ring")).map(|line| {
        let (from, to) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
        usize::from_str_radix(to, 16).expect("an end") - usize::from_str_radix(from, 16).expect("a begin")
    });
    let sizes: Vec<usize> = sizes.collect();
    assert_eq!(sizes, [4096 + 2 * octets; 2], "both ends map rings of {octets} octets");
}

/// One request on each connection, of several sizes.
pub fn short_connections() {
    for size in [64, 65536, 1 << 20] {
        for _ in 0..20 {
            let p = fresh();
            let server = std::thread::spawn(move || {
                let request = recv(p.acceptor, 64, 0);
                produce_at_once(p.acceptor, size, 1);
                request
            });
            send(p.connector, b"request", 0);
            assert_eq!(consume(p.connector, size, 1), size);
            assert_eq!(server.join().unwrap(), "7 request");
            p.close();
        }
        note("replies of", size);
    }
    assert_eq!(rings(0), 0, "no connection was worth rings");
}

const LARGE: usize = 20 << 20;

/// A large transfer is on rings soon, whether it is one call or many.
pub fn earned_by_octets() {
    let calls: [(bool, fn(_, _, _)); 3] = [(false, produce), (false, produce_at_once), (true, produce_at_once)];
    let mut ends = 0;
    for ((nonblocking, produce), upload) in calls.into_iter().flat_map(|call| [(call, false), (call, true)]) {
        let p = fresh();
        let (from, to) = if upload { (p.connector, p.acceptor) } else { (p.acceptor, p.connector) };
        set_nonblocking(from, nonblocking);
        let sender = std::thread::spawn(move || produce(from, LARGE, 5));
        note("received", consume(to, LARGE, 5));
        sender.join().unwrap();
        ends += 2;
        assert_eq!(rings(ends), ends, "ends on rings");
        rings_of(256 << 10);
        p.close();
    }
    let by_rings = counters().map_or(6 * LARGE as u64, |[_, received, ..]| received);
    assert!(by_rings > 3 * LARGE as u64, "{by_rings} octets by rings of {}", 6 * LARGE);
}

/// One send to a peer that begins to receive later: the first attempts find no answer. The time in which sends are
/// divided may be over on a busy machine, so one of several connections is enough.
pub fn earned_by_a_send_that_waits() {
    for upload in [false, true] {
        let is_on_rings = (0..10).any(|_| {
            let before = rings(0);
            let p = fresh();
            let (from, to) = if upload { (p.connector, p.acceptor) } else { (p.acceptor, p.connector) };
            let sender = std::thread::spawn(move || produce_at_once(from, LARGE, 5));
            poll(to, libc::POLLIN, 5000);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(consume(to, LARGE, 5), LARGE);
            sender.join().unwrap();
            p.close();
            rings(before + 2) - before == 2
        });
        note("on rings", is_on_rings);
    }
}

/// Small messages for longer than a moment.
pub fn earned_by_age() {
    let p = fresh();
    exchange(p, 100);
    std::thread::sleep(Duration::from_millis(50));
    exchange(p, 40);
    assert_eq!(rings(2), 2, "ends on rings");
    rings_of(64 << 10);
    p.close();
    let p = fresh();
    std::thread::sleep(Duration::from_millis(50));
    exchange(p, 2);
    assert_eq!(rings(2), 2, "a connection with few operations has no rings");
    p.close();
}

fn exchange(p: Pair, times: usize) {
    for _ in 0..times {
        for (from, to) in [(p.connector, p.acceptor), (p.acceptor, p.connector)] {
            assert_eq!(send(from, b"m", 0), 1);
            assert_eq!(recv(to, 1, 0), "1 m");
        }
    }
}

/// A thread that waits in recv while another one sends gets what comes, whether or not the connection has got rings
/// meanwhile.
pub fn earned_beside_readers() {
    const EACH: usize = 3000;
    for _ in 0..5 {
        let p = fresh();
        let readers = [p.connector, p.acceptor].map(|fd| std::thread::spawn(move || consume(fd, EACH, 7)));
        let writers = [p.connector, p.acceptor].map(|fd| {
            std::thread::spawn(move || {
                let mut octets = Sequence::new(7);
                for i in 0..EACH {
                    assert_eq!(send(fd, &[octets.next() as u8], 0), 1);
                    if i % 50 == 0 {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
            })
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        note("received", format!("{:?}", readers.map(|reader| reader.join().unwrap())));
        p.close();
    }
    assert!(rings(1) > 0, "no end is on rings");
}

/// An acceptor with more operations asks before its connectors have earned rings. That they do not answer then does not
/// count against the other connections of the program.
pub fn earned_by_unequal_operations() {
    const CONNECTIONS: usize = 24;
    const REPLIES: usize = 12;
    let all: Vec<Pair> = (0..CONNECTIONS).map(|_| fresh()).collect();
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..40 {
        for p in &all {
            assert_eq!(send(p.connector, b"q", 0), 1);
            assert_eq!(recv(p.acceptor, 1, 0), "1 q");
            (0..REPLIES).for_each(|_| assert_eq!(send(p.acceptor, b"r", 0), 1));
            assert_eq!(recv(p.connector, REPLIES, libc::MSG_WAITALL), "12 rrrrrrrrrrrr");
        }
    }
    let ends = 2 * CONNECTIONS as u64;
    assert_eq!(rings(ends), ends, "ends on rings");
    all.into_iter().for_each(Pair::close);
}

/// A server that accepts late, because the machine is busy: the connector has had many operations by then.
pub fn earned_by_late_acceptors() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut sent = 0;
    for _ in 0..4 {
        (0..400).for_each(|_| sent += send(client.as_raw_fd(), b"m", 0));
        std::thread::sleep(Duration::from_millis(100));
    }
    let p = Pair { connector: client.into_raw_fd(), acceptor: listener.accept().unwrap().0.into_raw_fd() };
    assert_eq!(recv(p.acceptor, 1600, libc::MSG_WAITALL).len(), 45);
    note("sent before", sent);
    for _ in 0..10 {
        exchange(p, 20);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(rings(2), 2, "ends on rings");
    p.close();
}

/// Two threads that receive, of which one always waits in the kernel: there is no moment for rings unless the calls
/// that follow are no calls of the kernel.
pub fn earned_by_two_readers() {
    const TIMES: usize = 300;
    let p = fresh();
    let readers = [(); 2].map(|()| {
        std::thread::spawn(move || {
            let received = std::iter::from_fn(|| Some(recv(p.connector, 1, 0)));
            received.take_while(|octet| octet == "1 m").count()
        })
    });
    for _ in 0..TIMES {
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(send(p.acceptor, b"m", 0), 1);
    }
    assert_eq!(send(p.acceptor, b"ee", 0), 2);
    note("received", readers.map(|reader| reader.join().unwrap()).iter().sum::<usize>());
    assert_eq!(rings(2), 2, "ends on rings");
    p.close();
}

/// connect(2) of a socket of UDP names a server that is admitted: datagrams stay whole.
pub fn datagrams() {
    let server = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let client = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    server.connect(client.local_addr().unwrap()).unwrap();
    let (datagram, mut buffer) = (vec![b'd'; 60_000], vec![0; 65536]);
    for round in 0..40 {
        for (from, to) in [(&client, &server), (&server, &client)] {
            assert_eq!(from.send(&datagram).unwrap(), datagram.len());
            let (n, address) = to.recv_from(&mut buffer).unwrap();
            assert_eq!((n, address), (datagram.len(), from.local_addr().unwrap()));
        }
        if round == 20 {
            std::thread::sleep(Duration::from_millis(30));
        }
    }
    note("datagrams", "whole");
    assert_eq!(rings(0), 0);
}
