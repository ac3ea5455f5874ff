// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"
)

// CaptureOptions says what a capture records. Most callers set only Devices.
type CaptureOptions struct {
	Devices []string
	// Keep selects the packets to keep; nil: all. It is not called concurrently.
	Keep func(*CapturedPacket) bool
	// Limit is the greatest number of packets to keep, 10,000 if 0. More are an error of Packets.
	Limit int
	// For limits the duration of the capture, 5 minutes if 0.
	For time.Duration
}

// CapturedPacket is an IP packet that has passed a device.
type CapturedPacket struct {
	Device string
	// Sent means that the host sent it by the device; otherwise it received it.
	Sent bool
	// Data has the first 512 octets from the IP header on.
	Data []byte
	// Length is the number of octets from the IP header on, of all segments of a merged packet.
	Length int
}

// captureSize is the number of octets kept of a packet.
const captureSize = 512

// Layers are the packet's, from IPv4 or IPv6 on. The last one may be truncated.
func (p *CapturedPacket) Layers() gopacket.Packet {
	kind := gopacket.LayerType(layers.LayerTypeIPv4)
	if len(p.Data) > 0 && p.Data[0]>>4 == 6 {
		kind = layers.LayerTypeIPv6
	}
	return gopacket.NewPacket(p.Data, kind, gopacket.NoCopy)
}

// A Capture records packets at devices of a host from its creation on. XDP runs before it on arriving packets,
// so packets that a host's own XDP program has taken are only seen at the other end of the link.
type Capture struct {
	options CaptureOptions
	cancel  context.CancelFunc
	ended   chan struct{}

	mu      sync.Mutex
	sockets map[string]int // by device
	packets []CapturedPacket
	err     error
}

// drainInterval is how often a capture empties its sockets, which buffer packets in between.
const drainInterval = 10 * time.Millisecond

// Capture begins to record. The caller stops it.
func (h *Host) Capture(options CaptureOptions) (*Capture, error) {
	if options.Limit == 0 {
		options.Limit = 10_000
	}
	if options.For == 0 {
		options.For = 5 * time.Minute
	}
	c := &Capture{options: options, sockets: map[string]int{}, ended: make(chan struct{})}
	err := h.Do(func() error {
		for _, name := range options.Devices {
			fd, err := hearAt(name)
			if err != nil {
				return fmt.Errorf("capturing at device %s: %w", name, err)
			}
			c.sockets[name] = fd
		}
		return nil
	})
	if err != nil {
		c.close()
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), options.For)
	c.cancel = cancel
	go c.run(ctx)
	return c, nil
}

func (c *Capture) run(ctx context.Context) {
	defer close(c.ended)
	tick := time.NewTicker(drainInterval)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
		c.mu.Lock()
		c.drain()
		c.mu.Unlock()
	}
	c.close()
}

func (c *Capture) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, fd := range c.sockets {
		unix.Close(fd)
	}
	c.sockets = nil
}

// drain reads the packets in the sockets.
func (c *Capture) drain() {
	for device, fd := range c.sockets {
		if c.err == nil {
			c.err = c.drainSocket(device, fd)
		}
	}
}

func (c *Capture) drainSocket(device string, fd int) error {
	buffer := make([]byte, captureSize)
	for {
		n, from, err := unix.Recvfrom(fd, buffer, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return missed(device, fd)
		case errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.EINTR): // the device may come up again
			continue
		case err != nil:
			return fmt.Errorf("capturing at device %s: %w", device, os.NewSyscallError("recvfrom", err))
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		p := CapturedPacket{Device: device, Sent: ok && link.Pkttype == unix.PACKET_OUTGOING, Length: n}
		p.Data = append([]byte(nil), buffer[:min(n, len(buffer))]...)
		if err := c.keep(p); err != nil {
			return err
		}
	}
}

// missed is an error if the socket has dropped packets.
func missed(device string, fd int) error {
	stats, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return fmt.Errorf("capturing at device %s: %w", device, os.NewSyscallError("getsockopt", err))
	}
	if stats.Drops > 0 {
		return fmt.Errorf("capturing at device %s: %d packets were missed: reduce the traffic there", device, stats.Drops)
	}
	return nil
}

func (c *Capture) keep(p CapturedPacket) error {
	if p.Length == 0 || p.Data[0]>>4 != 4 && p.Data[0]>>4 != 6 { // ARP and the like
		return nil
	}
	if c.options.Keep != nil && !c.options.Keep(&p) {
		return nil
	}
	if len(c.packets) >= c.options.Limit {
		return fmt.Errorf("capturing: more than %d packets: raise the limit, or keep fewer", c.options.Limit)
	}
	c.packets = append(c.packets, p)
	return nil
}

// Packets returns the packets since the last call. It fails if any is missing.
func (c *Capture) Packets() ([]CapturedPacket, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drain()
	all := c.packets
	c.packets = nil
	return all, c.err
}

// Stop ends the capture, and returns the remaining packets.
func (c *Capture) Stop() ([]CapturedPacket, error) {
	c.cancel()
	<-c.ended
	return c.Packets()
}
