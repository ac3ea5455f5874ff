// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/web"
	"beeline.io/beeline/internal/shortcut/mesh"
	"beeline.io/beeline/test/lab"
)

// A meshRig is a cluster with an agent on each node, and a web server outside.
type meshRig struct {
	world   *harness.World
	web     *web.Nginx
	server  netip.AddrPort
	folders []string
	proxies map[string]*lab.Cmd // by pod
	library string              // of the host stack
}

// redirect are the rules of a sidecar by netfilter, as Istio's: connections of the proxy's user are left alone.
const redirect = `table ip sidecar {
	chain output {
		type nat hook output priority -100; policy accept;
		meta skuid 1337 return
		ip daddr 127.0.0.0/8 return
		meta l4proto tcp redirect to :15001
	}
}`

const (
	proxyUser = 1337
	proxyPort = 15001
	webPort   = 8090
	// What the web server answers at a path of its own.
	longPath, longAnswer = "/long", 64 << 10
)

// webConfig answers with 1 KiB, with the file of a path of its own, and at /who with the client's port.
const webConfig = web.ConfigCommon + `
http {` + web.ConfigHTTP + `
	server {
		listen %[2]s backlog=1024;
		location / { return 200 "%[3]s"; }
		location = ` + longPath + ` { root %[1]s; }
		location = /who { return 200 "$remote_port"; }
	}
}
`

func newRig(ctx context.Context, b *harness.Bench) (rig *meshRig, err error) {
	rig = &meshRig{proxies: map[string]*lab.Cmd{}}
	if rig.library, _, err = harness.HostStackPrograms(b.Program); err != nil {
		return nil, err
	}
	if rig.world, err = harness.NewWorld(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, rig.end())
		}
	}()
	client := rig.world.Host("client")
	rig.server = netip.AddrPortFrom(client.Addr4, webPort)
	if rig.web, err = web.StartNginx(ctx, client, fmt.Sprintf(webConfig, web.NginxFolder(client), rig.server, strings.Repeat("b", web.AnswerLength)), rig.server); err != nil {
		return rig, err
	}
	long := filepath.Join(web.NginxFolder(client), longPath)
	if err := os.WriteFile(long, bytes.Repeat([]byte("b"), longAnswer), 0o644); err != nil {
		return rig, err
	}
	for _, pod := range pods {
		if err := reusePorts(rig.world.Host(pod)); err != nil {
			return rig, err
		}
	}
	if err := harness.RunOn(ctx, rig.world.Host(pods[netfilter]), redirect, "nft", "-f", "-"); err != nil {
		return rig, err
	}
	return rig, errors.Join(rig.startAgent(b, "node-a", sockmap, "--mesh-sockmap"), rig.startAgent(b, "node-b", hook, "--mesh-cgroups="+rig.world.Host(pods[meshRings]).Cgroup))
}

// reusePorts has a pod connect from ports of connections that ended more than a second ago. A new connection for each
// request to one server else takes all ports in seconds, for a minute, and the kernel's search for a free one is
// measured. Application and proxy share the ports with netfilter's rules, and not with the hooks.
func reusePorts(pod *lab.Host) error {
	return pod.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_tw_reuse", []byte("1"), 0o644) })
}

func (rig *meshRig) startAgent(b *harness.Bench, host string, side int, flags ...string) error {
	_, err := rig.world.StartAgent(b.Program, host, "", append([]string{"--edge-mode=off", "--mesh-cgroups=" + rig.world.Host(pods[side]).Cgroup}, flags...)...)
	return err
}

func (rig *meshRig) end() error {
	if rig.web != nil {
		rig.web.Stop()
	}
	for _, f := range rig.folders {
		os.RemoveAll(f)
	}
	return rig.world.End()
}

// startProxies starts a proxy in the pod of each side that has one.
func (rig *meshRig) startProxies(ctx context.Context, p meshProxy) error {
	for _, side := range []int{netfilter, hook, sockmap, meshRings} {
		if err := rig.startProxy(ctx, p, side); err != nil {
			return err
		}
	}
	return nil
}

func (rig *meshRig) startProxy(ctx context.Context, p meshProxy, side int) error {
	pod := rig.world.Host(pods[side])
	folder, err := os.MkdirTemp("", "beeline-mesh-")
	if err != nil {
		return err
	}
	rig.folders = append(rig.folders, folder)
	config := filepath.Join(folder, "config.yaml")
	text := strings.NewReplacer("FOLDER", folder, "SERVER", rig.server.String(), "PORT", strconv.Itoa(proxyPort)).Replace(p.config)
	err = errors.Join(os.Chown(folder, proxyUser, proxyUser), os.WriteFile(config, []byte(text), 0o644))
	if err != nil {
		return err
	}
	cmd := pod.Command(ctx, p.argv(folder, config)...)
	cmd.Env = rig.environment(side)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: proxyUser, Gid: proxyUser}}
	if err := cmd.Start(); err != nil {
		return err
	}
	rig.proxies[pod.Name] = cmd
	if err := awaitBound(ctx, pod, proxyPort); err != nil {
		return fmt.Errorf("%s in %s: %w; it printed:\n%s", p.name, pod.Name, err, &complaints)
	}
	return nil
}

// awaitBound waits for a listener at a port without a connection to it: a proxy that forwards to the original
// destination forwards such a connection to itself, again and again.
func awaitBound(ctx context.Context, on *lab.Host, port uint16) error {
	ctx, cancel := context.WithTimeout(ctx, web.ListenTimeout)
	defer cancel()
	for {
		out, err := on.Command(ctx, "ss", "-Hltn", fmt.Sprintf("sport = :%d", port)).CombinedOutput()
		if err == nil && len(out) > 0 {
			return nil
		}
		if harness.Pause(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("nothing listens at port %d within %v (%v): %s", port, web.ListenTimeout, err, out)
		}
	}
}

func (rig *meshRig) stopProxies(stop func()) {
	stop()
	for _, p := range rig.proxies {
		p.Wait()
	}
	clear(rig.proxies)
}

// environment is that of client and proxy of a side.
func (rig *meshRig) environment(side int) []string {
	if side != meshRings {
		return nil // this program's
	}
	return append(os.Environ(), "LD_PRELOAD="+rig.library, fmt.Sprintf("BEELINE_HOSTSTACK_INCLUDE=127.0.0.1:%d", proxyPort))
}

// wrk runs wrk in the pod of a side. On a busy machine it may get next to no CPU: such a run is repeated.
func (rig *meshRig) wrk(ctx context.Context, side int, c meshCase) (r web.Result, err error) {
	load := web.Load{Seconds: seconds, Connections: c.Connections, Path: c.path, Closing: c.closing}
	for range web.Tries {
		r, err = web.RunLoad(ctx, rig.world.Host(pods[side]), rig.server, load, rig.environment(side))
		if !errors.Is(err, web.ErrNoAnswer) {
			break
		}
	}
	if err == nil && r.Bytes < r.Requests*uint64(c.length) {
		err = fmt.Errorf("%d bytes in %d answers of %d bytes", r.Bytes, r.Requests, c.length)
	}
	return r, err
}

// ringPoll is the time between looks at the rings of a proxy.
const ringPoll = 100 * time.Millisecond

// countRings counts the connections that the proxy of a side has on rings, until stop, which returns the most at any
// time. On a busy machine connections may need most of a run of wrk to earn rings.
func (rig *meshRig) countRings(side int) (stop func() int) {
	if side != meshRings {
		return func() int { return 0 }
	}
	ctx, cancel := context.WithCancel(context.Background())
	most := make(chan int)
	maps := fmt.Sprintf("/proc/%d/maps", rig.proxies[pods[side]].Process.Pid)
	go func() {
		n := 0
		for ctx.Err() == nil {
			text, _ := os.ReadFile(maps) // without it none are counted
			n = max(n, bytes.Count(text, []byte("/memfd:beeline-ring ")))
			time.Sleep(ringPoll)
		}
		most <- n
	}()
	return func() int { cancel(); return <-most }
}

// proveTime bounds the wait for an agent to serve a pod, and for Envoy, which resets connections while it starts.
const proveTime = 30 * time.Second

// prove checks that a request of a side goes through its proxy: the web server then sees another port than the client
// has. The hooks connect the client to loopback, netfilter does not.
func (rig *meshRig) prove(ctx context.Context, side int) error {
	for end := time.Now().Add(proveTime); ; time.Sleep(50 * time.Millisecond) {
		local, seen, err := rig.who(ctx, side)
		through, byHook := seen != local.Port(), local.Addr().IsLoopback()
		if err == nil && through == (side != none) && byHook == (side == hook || side == sockmap || side == meshRings) {
			return nil
		}
		if ctx.Err() != nil || time.Now().After(end) {
			return cmp.Or(err, fmt.Errorf("the client has %s, and the web server sees port %d", local, seen))
		}
	}
}

// who returns the address of a client in the pod of a side, and the port that the web server sees.
func (rig *meshRig) who(ctx context.Context, side int) (local netip.AddrPort, seen uint16, err error) {
	local, text, err := web.Who(ctx, rig.world.Host(pods[side]), rig.server)
	if err != nil {
		return local, 0, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	return local, uint16(port), err
}

// skipped is the number of messages past TCP of a side.
func (rig *meshRig) skipped(side int) (uint64, error) {
	if side != sockmap {
		return 0, nil
	}
	counts, err := mesh.ReadCounters(rig.world.Agents[0].BPFFS())
	if err != nil || counts == nil {
		return 0, errors.Join(err, errors.New("the agent has no counters of the sidecar shortcut"))
	}
	return counts.Skipped, nil
}
