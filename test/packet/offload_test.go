// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A packet of the same machine (of a container or a virtual machine) reaches tc with a checksum that its sender
// left to the device. It leaves with a correct one, forwarded or answered.
func TestChecksumLeftToDevice(t *testing.T) {
	w := newScene(t)
	w.attachIngress(t)
	// The kernel then computes the checksum before it sends, and a capture sees it.
	noChecksums(t, "eth0")
	far := w.newClient(t)
	for _, f := range families {
		for _, protocol := range []uint8{tcp, udp} {
			t.Run(fmt.Sprintf("%s/%d", f.name, protocol), func(t *testing.T) {
				far.enter(t)
				watch := openCapture(t)
				if err := talk(f, protocol, rejected, time.Minute); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("a refused client sees %v, want %v", err, unix.ECONNREFUSED)
				}
				_ = talk(f, protocol, toRemote, 10*time.Millisecond) // nobody answers
				watch.sees(t, f, protocol)
			})
		}
	}
}

// attachIngress attaches the program to eth0's tc ingress as a filter, for kernels without tcx (Linux 6.6).
func (w *world) attachIngress(t testing.TB) {
	t.Helper()
	w.attachIngressOf(t, "eth0")
}

func (w *world) attachIngressOf(t testing.TB, device string) {
	t.Helper()
	w.attach(t, int(w.index[device]), netlink.HANDLE_MIN_INGRESS, w.ingress)
}

// attach attaches a program to a device, until the test's end: the next test has the same programs and counters.
func (w *world) attach(t testing.TB, device int, hook uint32, program *ebpf.Program) {
	t.Helper()
	at := netlink.QdiscAttrs{LinkIndex: device, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	clsact := &netlink.GenericQdisc{QdiscAttrs: at, QdiscType: "clsact"}
	must(t, netlink.QdiscAdd(clsact))
	t.Cleanup(func() {
		w.enter(t)
		if err := netlink.QdiscDel(clsact); !errors.Is(err, unix.ENODEV) { // it may have ended with its far end
			must(t, err)
		}
	})
	must(t, netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: device, Parent: hook, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
		Fd:          program.FD(), Name: "edge", DirectAction: true}))
	w.attached = true
}

// newClient moves the far end of eth0 to a namespace of its own, with the client's addresses.
func (w *world) newClient(t testing.TB) *network {
	t.Helper()
	far := &network{}
	done := make(chan error)
	leave := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			far.file, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		}
		done <- err
		<-leave
		done <- configureClient()
	}()
	must(t, <-done)
	end, err := netlink.LinkByName("eth0-far")
	must(t, err)
	must(t, netlink.LinkSetNsFd(end, int(far.file.Fd())))
	close(leave)
	must(t, <-done)
	must(t, running("eth0"))
	t.Cleanup(func() { far.file.Close() })
	return far
}

func configureClient() error {
	end, err := netlink.LinkByName("eth0-far")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetHardwareAddr(end, gatewayMAC[:]); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(end); err != nil {
		return err
	}
	if err := running(end.Attrs().Name); err != nil {
		return err
	}
	for _, f := range families {
		address := &netlink.Addr{IPNet: &net.IPNet{IP: f.client.AsSlice(), Mask: net.CIDRMask(f.client.BitLen(), f.client.BitLen())},
			Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrAdd(end, address); err != nil {
			return err
		}
		if err := answered(f.client.AsSlice()); err != nil {
			return err
		}
		vip := &net.IPNet{IP: f.vip.AsSlice(), Mask: address.Mask}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: end.Attrs().Index, Dst: vip, Scope: netlink.SCOPE_LINK}); err != nil {
			return err
		}
		if err := netlink.NeighAdd(&netlink.Neigh{LinkIndex: end.Attrs().Index, State: netlink.NUD_PERMANENT, IP: vip.IP,
			HardwareAddr: eth0MAC[:]}); err != nil {
			return err
		}
	}
	return nil
}

// answered waits until the kernel has an address: with IPv6 it finishes that in the background, and until then
// drops packets for it.
func answered(address net.IP) error {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		routes, err := netlink.RouteGet(address)
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("address %v is not local yet: %v, %w", address, routes, err)
		}
	}
}

// noChecksums makes the kernel compute a device's checksums.
func noChecksums(t testing.TB, device string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	must(t, err)
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{unix.ETHTOOL_STXCSUM, 0}
	request := struct {
		name [16]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:], device)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		t.Fatalf("turning the checksums of %s off: %v", device, errno)
	}
}

// talk sends to the Service as the client, and returns the socket's error.
func talk(f family, protocol uint8, port uint16, wait time.Duration) error {
	network := "udp"
	if protocol == tcp {
		network = "tcp"
	}
	conn, err := net.DialTimeout(network, on(f.vip, port).String(), wait)
	if err != nil {
		return err
	}
	defer conn.Close()
	if protocol == tcp {
		return nil
	}
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("a question of some length")); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 100))
	return err
}

// capture captures packets at eth0.
type capture int

func openCapture(t testing.TB) capture {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(htons(unix.ETH_P_ALL)))
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}))
	return capture(fd)
}

// openCaptureOf captures what one device receives and sends.
func openCaptureOf(t testing.TB, device int) capture {
	t.Helper()
	c := openCapture(t)
	must(t, unix.Bind(int(c), &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: device}))
	return c
}

// next waits for a frame; a signal can interrupt the system call, see signal(7).
func (c capture) next(frame []byte) (length int, err error) {
	for err = unix.EINTR; err == unix.EINTR; {
		length, err = unix.Read(int(c), frame)
	}
	return length, err
}

func htons(n uint16) uint16 { return n<<8 | n>>8 }

// sees waits for the client's packet to the backend, and verifies its checksum.
func (c capture) sees(t testing.TB, f family, protocol uint8) {
	t.Helper()
	frame := make([]byte, 2000)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		n, err := c.next(frame)
		if err != nil {
			t.Fatalf("waiting for a packet to %v: %v", f.remote, err)
		}
		addresses, l4 := frame[26:34], 34
		if f.client.Is6() {
			addresses, l4 = frame[22:54], 54
		}
		if n < l4+8 || !slices.Equal(addresses[len(addresses)/2:], f.remote.AsSlice()) {
			continue
		}
		pseudo := slices.Concat(addresses, []byte{0, protocol, byte((n - l4) >> 8), byte(n - l4)}, frame[l4:n])
		if sum := checksum(0, pseudo); sum != 0 {
			t.Errorf("the checksum of the packet to %v is wrong by %#x: % x", f.remote, sum, frame[:n])
		}
		return
	}
	t.Errorf("no packet to %v", f.remote)
}

func deviceIndex(name string) (int, error) {
	end, err := netlink.LinkByName(name)
	if err != nil {
		return 0, err
	}
	return end.Attrs().Index, nil
}
