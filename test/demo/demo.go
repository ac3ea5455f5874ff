// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// demo is the state of one run.
type demo struct {
	options
	out io.Writer

	lab    *lab.Lab
	folder string // the agents' manifests
	agents []*node.Agent

	// The counts so far.
	attempts int // connections that are to succeed
	refusals int // connections that are to be refused
	claims   int // observed
}

// A step shows one thing.
type step struct {
	title string
	text  string
	show  func(context.Context, *demo) error
}

var steps = []step{
	{"One address, many pods", `
A Service has an address that no machine has. Pod a1 connects to it again and
again, in both address families, and the pods behind it answer in turn, those on
its own node and those on the other.`, showSpread},
	{"The shortcut, seen from both ends", `
The program that connects sees the Service's address, as if it were talking to
it. The server sees the client's own address, and on the wire there is nothing
but these two: no packet is translated.`, showNames},
	{"Session affinity", `
The Service "sticky" sends each client to one pod, always the same. Other
clients may have another one.`, showAffinity},
	{"Datagrams", `
The same for UDP, where there are no connections: each socket keeps its pod, and
sees answers come from the address it asked. When the pod goes, the socket moves
on, or is told if it was connected. And on the node nobody can bind a port that
Beeline serves.`, showDatagrams},
	{"Nobody there", `
A Service without endpoints refuses at once, and so does an address of the
Services' range that no Service has. Nobody has to wait for a time-out.`, showRefusals},
	{"A client outside", `
A machine that is not of the cluster asks node-a for the NodePort of the Service
"public". Here there is a packet to translate, and it is done at the node's
device, before the node's own network stack; one of the pods is on the other
node.`, showOutside},
	{"A pod is taken away under load", `
Four clients connect without pause, while pod b1 leaves the Service and its
server stops, and while it comes back. No connection fails, and one that was
open to b1 is served to its end.`, showDrain},
	{"An agent is killed under load", `
The agent on node-a gets SIGKILL. What it attached stays, so connections go on;
a new agent takes over.`, showCrash},
	{"What an operator sees", "", showTables},
	{"The same by hand", "", showByHand},
}

func (d *demo) show(ctx context.Context) error {
	if err := d.setUp(ctx); err != nil {
		return err
	}
	for i, s := range steps {
		d.say("\n%d. %s\n%s", i+1, s.title, strings.Repeat("-", len(s.title)+3))
		if s.text != "" {
			d.say("%s\n", strings.TrimSpace(s.text))
		}
		if err := s.show(ctx, d); err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// setUp creates the lab, starts its servers and the agents.
func (d *demo) setUp(ctx context.Context) error {
	program, err := filepath.Abs(d.program)
	if err != nil {
		return err
	}
	for flag, path := range map[string]string{"--program": program, "--lab-program": d.labProgram} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("%s: %w (`make build` makes it)", flag, err)
		}
	}
	if err := d.removeOld(); err != nil {
		return err
	}
	if d.lab, err = lab.Up(lab.Config{Name: d.name}); err != nil {
		return err
	}
	d.say(`A lab is up: two nodes with three pods each, a1 to a3 on node-a and b1 to b3 on
node-b. They are network namespaces of this machine, whose own network they
leave alone. A small server runs in each pod and answers with the pod's name.`)
	for _, pod := range d.lab.Pods() {
		if err := pod.StartServer(lab.ServerOptions{Drain: drainTime}); err != nil {
			return err
		}
	}
	// In the lab's directory, so that it is removed with the lab.
	d.folder = filepath.Join(filepath.Dir(d.lab.Nodes()[0].Dir), "manifests")
	if err := copyManifests(d.folder, d.manifests); err != nil {
		return err
	}
	for _, host := range d.lab.Nodes() {
		a := &node.Agent{Host: host, Program: program, Manifests: d.folder, Detached: filepath.Join(host.RunDir, "agent.log")}
		if err := a.Start(); err != nil {
			return err
		}
		d.agents = append(d.agents, a)
	}
	d.say("\nA Beeline agent runs on each node. Both read Services from %s,\na copy of %s.", d.folder, d.manifests)
	return ctx.Err()
}

// removeOld takes down the lab of an earlier run.
func (d *demo) removeOld() error {
	_, err := lab.Open(d.name)
	if errors.Is(err, lab.ErrNotFound) {
		return nil
	}
	if err := lab.Down(d.name); err != nil {
		return fmt.Errorf("taking down the lab of an earlier run: %w", err)
	}
	d.say("(The lab of an earlier run was taken down.)\n")
	return nil
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// claim prints an observation, or fails if it was not made.
func (d *demo) claim(observed bool, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if !observed {
		return fmt.Errorf("not observed: %s", text)
	}
	d.claims++
	d.say("  ok: %s", text)
	return nil
}

// showLogs prints the end of the agents' logs.
func (d *demo) showLogs() {
	for _, a := range d.agents {
		text, err := os.ReadFile(a.Detached)
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		d.say("\nThe agent on %s printed last:\n  %s", a.Host.Name, strings.Join(lines[max(0, len(lines)-10):], "\n  "))
	}
}
