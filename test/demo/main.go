// SPDX-License-Identifier: Apache-2.0

// Command demo shows Services at work in a lab of network namespaces: it creates the lab, runs an agent on each
// node, connects, and checks what it claims. It leaves everything running for experiments.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"beeline.io/beeline/test/lab"
)

// options are the command line.
type options struct {
	program    string
	labProgram string
	manifests  string
	name       string
	keep       bool
	down       bool
}

func main() {
	lab.Main() // does not return in the helper processes that a lab starts
	var o options
	pflag.StringVar(&o.program, "program", "bin/beeline", "the beeline program")
	pflag.StringVar(&o.labProgram, "lab-program", "bin/beeline-lab", "the beeline-lab program")
	pflag.StringVar(&o.manifests, "manifests", "examples", "folder of manifests; the agents read a copy of it")
	pflag.StringVar(&o.name, "name", "demo", "name of the lab; one that is up is taken down first")
	pflag.BoolVar(&o.down, "down", false, "take the lab down at the end")
	pflag.BoolVar(&o.keep, "keep", false, "leave the lab up even if something fails")
	pflag.Parse()
	if pflag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: unexpected arguments %q; --help lists the flags\n", pflag.Args())
		os.Exit(2)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "demo: network namespaces, cgroups and BPF programs need root: run it with sudo")
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

// run shows everything, and leaves the lab as the options say. It prints failures.
func run(ctx context.Context, o options, out io.Writer) error {
	begin := time.Now()
	d := &demo{options: o, out: out}
	err := d.show(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		d.say("\nFAILED: %v", err)
		d.showLogs()
	} else {
		d.say("\n%d connections and datagrams through Services, none failed; %d refused, as they should be.\nAll %d claims were observed, in %s.",
			d.attempts, d.refusals, d.claims, time.Since(begin).Round(100*time.Millisecond))
	}
	if o.down || err != nil && !o.keep {
		if d.lab == nil {
			return err
		}
		if downErr := d.lab.Down(); downErr != nil {
			d.say("The lab could not be taken down: %v", downErr)
			return errors.Join(err, downErr)
		}
		d.say("The lab was taken down; nothing is left of it.")
		return err
	}
	d.sayHowToGoOn()
	return err
}
