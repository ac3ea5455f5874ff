// SPDX-License-Identifier: Apache-2.0

package main

import "context"

func showCrash(ctx context.Context, d *demo) error {
	web, err := d.view(webService)
	if err != nil {
		return err
	}
	l := d.startLoad(ctx, "the agent runs", web.addresses)
	defer l.stop()
	if err := l.await(ctx, phaseConnections); err != nil {
		return err
	}
	agent := d.agents[0]
	killed := agent.PID()
	if err := agent.Kill(); err != nil {
		return err
	}
	l.next("it was killed")
	if err := l.await(ctx, phaseConnections); err != nil {
		return err
	}
	l.next("another takes over")
	if err := agent.Start(); err != nil {
		return err
	}
	if err := l.await(ctx, phaseConnections); err != nil {
		return err
	}
	l.stop()
	if err := d.count(web.pods, l.phases...); err != nil {
		return err
	}
	status, err := agent.Status()
	if err != nil {
		return err
	}
	for _, c := range status.Conditions.Wrong() {
		d.say("status says: %s", c)
	}
	return d.claim(status.PID != killed && len(status.Conditions.Wrong()) == 0,
		"connections continued without the agent (pid %d); the new one (pid %d) reports that all is well", killed, status.PID)
}
