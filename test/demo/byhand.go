// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

func showTables(_ context.Context, d *demo) error {
	for _, command := range [][]string{{"service", "list"}, {"status"}} {
		d.say("$ %s", d.cli(command...))
		text, err := d.agents[0].CLI(command...)
		d.say("%s", text)
		if err != nil {
			return fmt.Errorf("beeline %s: %w", strings.Join(command, " "), err)
		}
	}
	d.claims++ // status exits with 0 only if all is well
	return nil
}

// cli is a command for the agent of node-a.
func (d *demo) cli(command ...string) string {
	return fmt.Sprintf("%s %s --agent-socket %s", d.program, strings.Join(command, " "), d.agents[0].Socket())
}

// in is a command that runs another one in a pod.
func (d *demo) in(host, command string) string {
	return fmt.Sprintf("%s exec%s %s -- %s", d.labProgram, d.nameFlag(), host, command)
}

func (d *demo) nameFlag() string {
	if d.name == "demo" {
		return "" // the default of `beeline-lab`
	}
	return " --name " + d.name
}

// showByHand runs commands exactly as printed, so that they are known to work.
func showByHand(ctx context.Context, d *demo) error {
	web, err := d.view(webService)
	if err != nil {
		return err
	}
	public, err := d.view(publicService)
	if err != nil {
		return err
	}
	address := web.addresses[0]
	commands := []string{
		d.in("a1", fmt.Sprintf(`bash -c 'exec 3<>/dev/tcp/%s/%d; echo hello >&3; head -n 1 <&3'`, address.Addr(), address.Port())),
		d.cli("service", "show", "web"),
	}
	if _, err := exec.LookPath("curl"); err == nil {
		commands = append([]string{d.in("a1", fmt.Sprintf("curl -sS http://%s/", public.addresses[0]))}, commands...)
	}
	for _, command := range commands {
		d.say("$ %s", command)
		text, err := exec.CommandContext(ctx, "bash", "-c", command).CombinedOutput()
		d.say("%s", text)
		if err != nil {
			return fmt.Errorf("%s: %w", command, err)
		}
	}
	d.attempts += len(commands) - 1
	d.claims++
	return nil
}

// sayHowToGoOn prints what to do with the running lab.
func (d *demo) sayHowToGoOn() {
	if d.lab == nil {
		return
	}
	d.say("\nThe lab and its agents keep running. Change a file in\n  %s\nand look:", d.folder)
	d.say("  %s", d.cli("service", "list"))
	d.say("  %s", d.cli("status"))
	d.say("A shell in a pod:\n  %s", d.in("a1", "bash"))
	d.say("The agents' logs:\n  tail -f %s", d.logs())
	d.say("Remove everything:\n  %s down%s", d.labProgram, d.nameFlag())
}

func (d *demo) logs() string {
	var paths []string
	for _, a := range d.agents {
		paths = append(paths, a.Detached)
	}
	return strings.Join(paths, " ")
}
