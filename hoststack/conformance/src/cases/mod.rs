// SPDX-License-Identifier: Apache-2.0

//! The cases, by subject.

mod bulk;
mod connections;
mod copies;
mod ends;
mod events;
mod exec;
mod hostile;
mod offers;
mod refusals;
mod streams;
mod switch;
mod waits;

pub struct Case {
    pub name: &'static str,
    pub run: fn(),
    pub expects: Expects,
}

/// Expects is what the library does in a case.
#[derive(PartialEq, Eq, Clone, Copy)]
pub enum Expects {
    /// Connections are on rings.
    Rings,
    /// They stay on the kernel.
    Kernel,
    /// They are on rings, and ends break them off because of impossible indices.
    Violations,
    /// One end has taken an offer, which did not come from the library.
    OneOffer,
}

macro_rules! cases {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        pub const ALL: &[Case] = &[$($(
            Case { name: stringify!($name), run: $module::$name, expects: Expects::Rings },
        )*)*
            Case { name: "connect_and_addresses", run: connections::connect_and_addresses, expects: Expects::Kernel },
            Case { name: "peer_without_library", run: connections::peer_without_library, expects: Expects::Kernel },
            Case { name: "forked_before_rings", run: copies::forked_before_rings, expects: Expects::Kernel },
            Case { name: "overwritten_header", run: hostile::overwritten_header, expects: Expects::Violations },
            Case { name: "wrong_offers", run: offers::wrong_offers, expects: Expects::OneOffer },
            Case { name: "offer_of_another_user", run: refusals::offer_of_another_user, expects: Expects::Kernel },
            Case { name: "mailbox_of_another_user", run: refusals::mailbox_of_another_user, expects: Expects::Kernel },
            Case { name: "without_memfd", run: refusals::without_memfd, expects: Expects::Kernel },
            Case { name: "without_eventfd", run: refusals::without_eventfd, expects: Expects::Kernel },
            Case { name: "without_netlink", run: refusals::without_netlink, expects: Expects::Kernel },
            Case { name: "without_unix_sockets", run: refusals::without_unix_sockets, expects: Expects::Kernel },
            Case { name: "passed_before_rings", run: copies::passed_before_rings, expects: Expects::Kernel },
        ];
    };
}

cases! {
    streams { all_calls, by_number, printed, flags, empty_and_full, message_lists, files_and_pipes, queue_lengths }
    connections { families }
    ends { half_close, close_with_data, close_unread, linger_reset, shutdown_of_reading, peer_killed, writer_of_killed_peer }
    events { level, edge, oneshot, exclusive, modify, two_instances, nested, moved_between_instances, copied_descriptor, copies_added_in_turn, closed_while_copied, closed_in_child, awake_beside_asleep, awake_in_another_instance, nested_later, awake_in_child, poll_and_select, events_before_rings, added_before_connect, writable, full_after_the_end, many }
    copies { duplicates, forked, forked_and_killed, forked_and_ended, closed_ranges, executed, standard_output }
    exec { executed_functions, spawned, shells, executed_beside_waits, streams_of_the_c_library, passed, taken_by_pidfd }
    waits { receive_time_limit, interrupted, restarted, threads_on_one_socket, wakes_from_other_thread }
    switch { switched_under_load, switched_at_an_edge, switched_while_full, switched_before_rings }
    bulk { both_directions, many_writers }
}
