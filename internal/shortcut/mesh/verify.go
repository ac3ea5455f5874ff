// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/internal/node/podcgroup"
	"beeline.io/beeline/internal/node/sockdiag"
)

// The ways that a connection takes.
const (
	ByProxy  = "proxy"
	Directly = "direct"
	Refused  = "refused"
	Untried  = "not tried"
)

// A Finding is the way that a connection of Verify took.
type Finding struct {
	// Connection is who connected to what.
	Connection string         `json:"connection"`
	To         netip.AddrPort `json:"to"`
	Way        string         `json:"way"`
	// Proof is what the kernel says about the socket.
	Proof string `json:"proof"`
	// Wrong: it should have gone another way.
	Wrong bool `json:"wrong,omitempty"`
}

// VerifyOptions choose the connections of Verify.
type VerifyOptions struct {
	// Outbound is to what the application and the proxy connect. Unset: an address that nobody has (RFC 5737): the
	// kernel chooses the way before a packet is sent.
	Outbound netip.AddrPort
	// InboundPort is the pod's port to which this host connects; 0: the lowest one at which an application listens.
	InboundPort uint16
	// Program is run with the arguments of ConnectArguments, and calls ReportConnect.
	Program string
}

// nowhere is an address for documentation, which no host has.
var nowhere = netip.MustParseAddrPort("192.0.2.1:80")

// ConnectArguments are those of the command of Program that connects.
var ConnectArguments = []string{"mesh", "connect"}

// Verify connects as an application of the pod, as its proxy and from this host, and asks the kernel which way each
// connection took.
func Verify(ctx context.Context, status *api.MeshStatus, pod *api.MeshPod, o VerifyOptions) (all []Finding, err error) {
	p := &Pod{MeshPod: *pod}
	namespace, err := podcgroup.Namespace(p.CgroupDirectory)
	if err != nil {
		return nil, err
	}
	if namespace == nil {
		return nil, fmt.Errorf("no process is in the cgroup %s of %s", p.CgroupDirectory, p.Label())
	}
	defer namespace.Close()
	to, chosen := o.Outbound, o.Outbound.IsValid()
	if !chosen {
		to = nowhere
	}
	for _, c := range p.connectors() {
		r, err := connectIn(ctx, namespace, c, to, o.Program)
		if (c.user != 0 || c.group != 0) && errors.Is(err, unix.EPERM) {
			all = append(all, Finding{Connection: c.String(), To: to, Way: Untried,
				Proof: fmt.Sprintf("this program may not become user %d and group %d (needs CAP_SETUID and CAP_SETGID)", c.user, c.group)})
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("connect as %s of %s: %w", c.who, p.Label(), err)
		}
		f := r.finding(to, status.OutboundPort)
		f.Connection = c.String()
		f.Wrong = f.Way != c.want && (!chosen || c.want == Directly)
		all = append(all, f)
	}
	inbound, err := verifyInbound(namespace, p, o.InboundPort)
	if err != nil {
		return all, fmt.Errorf("connect from this host to %s: %w", p.Label(), err)
	}
	return append(all, inbound), nil
}

// A connector is whom a process in the pod connects as.
type connector struct {
	who         string
	user, group uint32
	// in is the cgroup that it joins, or one below that; notIn is none of these.
	in, notIn string
	want      string
}

func (c *connector) String() string {
	if c.group != 0 && c.user == 0 {
		return fmt.Sprintf("of %s (user %d, group %d)", c.who, c.user, c.group)
	}
	return fmt.Sprintf("of %s (user %d)", c.who, c.user)
}

// connectors are an application, and the proxy by one thing that tells it.
func (p *Pod) connectors() []connector {
	proxy := connector{who: "its proxy", in: p.CgroupDirectory, want: Directly}
	switch {
	case p.Proxy.UID != nil:
		proxy.user, proxy.group = *p.Proxy.UID, *p.Proxy.UID
	case p.Proxy.GID != nil:
		proxy.group = *p.Proxy.GID
	case p.Proxy.Cgroup != "":
		proxy.in = p.Proxy.Cgroup
	default:
		return []connector{{who: "an application", in: p.CgroupDirectory, want: Refused}}
	}
	return []connector{{who: "an application", in: p.CgroupDirectory, notIn: p.Proxy.Cgroup, want: ByProxy}, proxy}
}

// connectResult is what the process in the pod found.
type connectResult struct {
	Error string `json:"error,omitempty"`
	Errno int    `json:"errno,omitempty"`
	// Local and Remote are the ends as the kernel has them, also where programs hide them. Remote is invalid after
	// a refusal.
	Local, Remote netip.AddrPort
}

func (r *connectResult) finding(to netip.AddrPort, proxy uint16) Finding {
	f := Finding{To: to, Way: Directly, Proof: fmt.Sprintf("the kernel connects the socket from %s to %s", r.Local, r.Remote)}
	switch {
	case r.Errno == int(unix.ECONNREFUSED) && r.Local.Addr().IsLoopback():
		f.Way, f.Proof = Refused, fmt.Sprintf("refused by loopback: no proxy listens at port %d", proxy)
	case r.Errno == int(unix.ECONNREFUSED) && r.Local.IsValid() && !r.Local.Addr().IsUnspecified():
		f.Proof = fmt.Sprintf("refused from elsewhere: the kernel connected the socket from %s", r.Local)
	case r.Errno == int(unix.ECONNREFUSED):
		f.Way, f.Proof = Refused, "refused before a packet was sent: nothing tells the proxy from applications, or its connection would come back to it"
	case r.Error != "":
		f.Proof = "the kernel does not reach the address itself: " + r.Error
	case r.Remote.Addr().IsLoopback() && r.Remote.Port() == proxy:
		f.Way = ByProxy
	}
	return f
}

// connectIn runs a process in the pod that connects. It joins the cgroup of another process of the pod: one that has
// others below it may have none, and nothing has to be made, so that a read-only mount is enough.
func connectIn(ctx context.Context, namespace *netns.Namespace, as connector, to netip.AddrPort, program string) (r connectResult, err error) {
	directory, err := populated(as.in, as.notIn)
	if err != nil {
		return r, err
	}
	cgroup, err := os.Open(directory)
	if err != nil {
		return r, err
	}
	defer cgroup.Close()
	cmd := exec.CommandContext(ctx, program, append(slices.Clone(ConnectArguments), to.String())...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	if as.user != 0 || as.group != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: as.user, Gid: as.group}
	}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := namespace.Do(cmd.Start); err != nil {
		return r, err
	}
	if err := cmd.Wait(); err != nil {
		return r, fmt.Errorf("%w: %s", err, strings.TrimSpace(out.String()))
	}
	return r, json.Unmarshal([]byte(out.String()), &r)
}

// populated returns the first cgroup at or below a directory, and not at or below another one, that has a process.
func populated(directory, not string) (found string, err error) {
	err = podcgroup.WalkCgroups(directory, func(path string, pids []string) error {
		switch {
		case path == not:
			return fs.SkipDir
		case len(pids) > 0:
			found = path
			return fs.SkipAll
		}
		return nil
	})
	if err == nil && found == "" {
		err = fmt.Errorf("no process is in the cgroup %s", directory)
	}
	return found, err
}

// ReportConnect connects, does not wait for the other end, and returns where the kernel has the socket connected to, as
// JSON.
func ReportConnect(to netip.AddrPort) ([]byte, error) {
	r, err := connectAndFind(to)
	if err != nil {
		return nil, err
	}
	return json.Marshal(r)
}

func connectAndFind(to netip.AddrPort) (r connectResult, err error) {
	family, address := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().Unmap().As4()})
	if to.Addr().Is6() && !to.Addr().Is4In6() {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return r, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, address); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		r.Error = err.Error()
		if errno, ok := err.(unix.Errno); ok {
			r.Errno = int(errno)
		}
		return r, nil
	}
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return r, os.NewSyscallError("getsockopt of SO_COOKIE", err)
	}
	socket, err := findSocket(func(s sockdiag.Socket) bool { return s.Cookie == cookie })
	if err != nil || socket == nil { // closed: refused meanwhile, by loopback or from elsewhere
		r.Errno, r.Error = int(unix.ECONNREFUSED), unix.ECONNREFUSED.Error()
		r.Local = localOf(fd)
		return r, err
	}
	r.Local, r.Remote = socket.Local, socket.Remote
	return r, nil
}

// localOf returns the address of a socket, which it keeps after a refusal; an invalid one if it cannot be told.
func localOf(fd int) netip.AddrPort {
	name, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// findSocket returns the first TCP socket of the thread's network namespace that is wanted; nil: there is none.
func findSocket(wanted func(sockdiag.Socket) bool) (*sockdiag.Socket, error) {
	all, err := sockdiag.List(unix.IPPROTO_TCP, sockdiag.AllStates)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(all, wanted); i >= 0 {
		return &all[i], nil
	}
	return nil, nil
}

// acceptTime bounds the wait for a process to accept the connection.
const acceptTime = 5 * time.Second

// verifyInbound connects from this host to a port of the pod, and finds whose socket accepts.
func verifyInbound(namespace *netns.Namespace, p *Pod, port uint16) (f Finding, err error) {
	var to netip.AddrPort
	err = namespace.Do(func() error {
		to, err = inboundAddress(p, port)
		return err
	})
	if err != nil {
		return f, err
	}
	f = Finding{Connection: "from this host", To: to, Way: Refused}
	conn, err := net.DialTimeout("tcp", to.String(), acceptTime)
	if errors.Is(err, unix.ECONNREFUSED) {
		f.Proof, f.Wrong = "the pod refuses the connection: neither a proxy nor an application takes it", true
		return f, nil
	}
	if err != nil {
		return f, err
	}
	defer conn.Close()
	own := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	socket, err := awaitAccepted(namespace, own, to)
	if err != nil {
		return f, err
	}
	f.Way = Directly
	if p.isOfProxy(socket) {
		f.Way = ByProxy
	}
	f.Proof = fmt.Sprintf("the socket that accepted it from %s belongs to user %d", own, socket.UID)
	if name := p.ownerOf(socket); name != "" {
		f.Proof += fmt.Sprintf(", process %q", name)
	}
	return f, nil
}

// inboundAddress returns an address of the pod, in whose network namespace the thread is, with a port at which an
// application listens.
func inboundAddress(p *Pod, port uint16) (to netip.AddrPort, err error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return to, err
	}
	if port == 0 {
		if port, err = applicationPort(p); err != nil {
			return to, err
		}
	}
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().IsGlobalUnicast() {
			return netip.AddrPortFrom(prefix.Addr(), port), nil
		}
	}
	return to, errors.New("the pod has no address")
}

// applicationPort returns the lowest port at which a socket listens that is not the proxy's.
func applicationPort(p *Pod) (port uint16, err error) {
	all, err := sockdiag.List(unix.IPPROTO_TCP, sockdiag.Listening)
	for _, s := range all {
		if !p.isOfProxy(&s) && !s.Local.Addr().Unmap().IsLoopback() && (port == 0 || s.Local.Port() < port) {
			port = s.Local.Port()
		}
	}
	if err == nil && port == 0 {
		err = errors.New("no application listens in the pod: name a port by --port")
	}
	return port, err
}

// isOfProxy reports whether a socket is the proxy's.
func (p *Pod) isOfProxy(s *sockdiag.Socket) bool {
	if p.Proxy.UID != nil && s.UID == *p.Proxy.UID {
		return true
	}
	proxy := recognizerOf(&p.Proxy)
	pids, err := podcgroup.Processes(p.CgroupDirectory)
	return err == nil && slices.ContainsFunc(descriptorsOf(pids, s.Inode), func(d descriptor) bool {
		user, group, name := credentialsOf(d.pid)
		return name != "" && proxy.is(d.pid, user, group)
	})
}

// ownerOf returns the name of a process of the pod that has a socket; empty: none is found.
func (p *Pod) ownerOf(s *sockdiag.Socket) (name string) {
	pids, _ := podcgroup.Processes(p.CgroupDirectory)
	for _, d := range descriptorsOf(pids, s.Inode) {
		_, _, name = credentialsOf(d.pid)
	}
	return name
}

// awaitAccepted waits until a process has accepted a connection, and returns its socket.
func awaitAccepted(namespace *netns.Namespace, from, to netip.AddrPort) (*sockdiag.Socket, error) {
	same := func(a, b netip.AddrPort) bool { return a.Addr().Unmap() == b.Addr().Unmap() && a.Port() == b.Port() }
	for end := time.Now().Add(acceptTime); ; time.Sleep(10 * time.Millisecond) {
		var found *sockdiag.Socket
		err := namespace.Do(func() (err error) {
			found, err = findSocket(func(s sockdiag.Socket) bool {
				return s.State != sockdiag.Listening && same(s.Local, to) && same(s.Remote, from) && s.Inode != 0
			})
			return err
		})
		switch {
		case err != nil || found != nil:
			return found, err
		case time.Now().After(end):
			return nil, fmt.Errorf("no process has accepted the connection to %s within %v", to, acceptTime)
		}
	}
}
