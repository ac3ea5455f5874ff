// SPDX-License-Identifier: Apache-2.0

//! The cases, by subject.

mod bulk;
mod connections;
mod copies;
mod ends;
mod events;
mod streams;
mod waits;

pub struct Case {
    pub name: &'static str,
    pub run: fn(),
    /// With the library, the case has connections on rings.
    pub rings: bool,
}

macro_rules! cases {
    ($($module:ident { $($name:ident),* $(,)? })*) => {
        pub const ALL: &[Case] = &[$($(
            Case { name: stringify!($name), run: $module::$name, rings: true },
        )*)*
            Case { name: "connect_and_addresses", run: connections::connect_and_addresses, rings: false },
            Case { name: "peer_without_library", run: connections::peer_without_library, rings: false },
            Case { name: "forked_before_rings", run: copies::forked_before_rings, rings: false },
            Case { name: "passed_before_rings", run: copies::passed_before_rings, rings: false },
        ];
    };
}

cases! {
    streams { all_calls, flags, empty_and_full, message_lists, files_and_pipes, queue_lengths }
    connections { families }
    ends { half_close, close_with_data, close_unread, linger_reset, shutdown_of_reading, peer_killed, writer_of_killed_peer }
    events { level, edge, oneshot, exclusive, modify, two_instances, nested, moved_between_instances, copied_descriptor, poll_and_select, events_before_rings, added_before_connect, writable }
    copies { duplicates, forked, forked_and_killed, closed_ranges, executed }
    waits { receive_time_limit, interrupted, restarted, threads_on_one_socket, wakes_from_other_thread }
    bulk { both_directions, many_writers }
}
