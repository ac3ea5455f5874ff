// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"math"
	"time"
)

// ConnectionStats are the TCP connections of sockets to a Service or backend. All numbers only grow.
type ConnectionStats = SockStatsSocketStats

// Open returns the number of connections that are established.
func (s *SockStatsSocketStats) Open() uint64 { return s.Established - min(s.Closed, s.Established) }

// Connecting returns the number of connections whose handshake is not complete.
func (s *SockStatsSocketStats) Connecting() uint64 {
	return s.Started - min(s.Established+s.Failed, s.Started)
}

// Handshakes returns the number of handshakes in Rtt.
func (s *SockStatsSocketStats) Handshakes() (sum uint64) {
	for _, n := range s.Rtt {
		sum += n
	}
	return sum
}

// Add adds the counters of others.
func (s *SockStatsSocketStats) Add(o *ConnectionStats) {
	s.Closed += o.Closed
	s.Failed += o.Failed
	s.Established += o.Established
	s.Started += o.Started
	s.SentBytes += o.SentBytes
	s.ReceivedBytes += o.ReceivedBytes
	s.Retransmits += o.Retransmits
	s.RttSum += o.RttSum
	for i, n := range o.Rtt {
		s.Rtt[i] += n
	}
}

// RTTQuantile returns the time that a share q of the handshakes took at most: the upper bound of the bucket with the
// quantile, at most a quarter too high. Of a quantile in the last bucket, which is open, it returns the lower bound.
// It returns 0 if there were no handshakes.
func (s *SockStatsSocketStats) RTTQuantile(q float64) time.Duration {
	rank, sum := uint64(math.Ceil(q*float64(s.Handshakes()))), uint64(0)
	if rank == 0 {
		return 0
	}
	for i, n := range s.Rtt {
		if sum += n; sum >= rank {
			return RTTBound(min(i, RTTBuckets-2))
		}
	}
	return 0
}

// RTTBuckets is the number of buckets of ConnectionStats.Rtt, and RTTParts of those in an octave.
const (
	RTTBuckets = int(SockStatsRttHistogramRTT_BUCKETS)
	RTTParts   = int(SockStatsRttHistogramRTT_PARTS)
)

// RTTBound returns the upper bound of a bucket of ConnectionStats.Rtt, which is the lower bound of the next one. A
// bucket excludes its upper bound. The last bucket has none: it has all longer times.
func RTTBound(bucket int) time.Duration {
	octave, part := bucket/RTTParts, bucket%RTTParts
	width := time.Microsecond << (int(SockStatsRttHistogramRTT_FIRST_OCTAVE) + octave) / time.Duration(RTTParts)
	return width * time.Duration(RTTParts+part+1)
}
