// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"beeline.io/beeline/internal/api"
)

// A question is what a command asks a running agent. Its fields say what to do if there is no answer.
type question struct {
	socket string
	// without is another way to get an answer while no agent answers, such as "read ..."; empty if there is none.
	without string
	// withoutHung is without for an agent that runs, and does not answer.
	withoutHung string
	// enable says how an agent is made to know the path, for paths of components; empty for paths of every agent.
	enable string
}

// get reads a path of the agent into value. It returns within two seconds if no agent answers at all.
func (q question) get(ctx context.Context, path string, value any) error {
	client := api.NewClient(q.socket)
	defer client.CloseIdleConnections()
	err := client.Alive(ctx)
	if err == nil {
		err = client.Get(ctx, path, value)
	}
	return q.explained(err)
}

// explained says what to do about an agent that gives no answer.
func (q question) explained(err error) error {
	switch {
	case errors.Is(err, api.ErrNotRunning):
		return fmt.Errorf("no agent answers on %s: start one%s", q.socket, alternatives(fmt.Sprintf("give its socket with --%s", socketFlag), q.without))
	case errors.Is(err, api.ErrNoAnswer):
		what := q.withoutHung
		if what == "" {
			what = "`beeline status` shows what is known of it; ask again, or restart it"
		}
		return fmt.Errorf("the agent on %s does not answer: %s", q.socket, what)
	case errors.Is(err, api.ErrUnknownPath) && q.enable != "":
		return fmt.Errorf("the agent on %s has no answer to this: %s; if it is set, the agent is of an earlier version: restart it with this one (%s)", q.socket, q.enable, version)
	case errors.Is(err, api.ErrUnknownPath):
		return fmt.Errorf("the agent on %s has no answer to this, because it is of another version than this command (%s): use the command of its version, or restart it with this one%s", q.socket, version, alternatives(q.without))
	case errors.Is(err, api.ErrNotAgent):
		return fmt.Errorf("what answers on %s is no agent: give the agent's socket with --%s%s", q.socket, socketFlag, alternatives(q.without))
	case errors.Is(err, api.ErrEnded):
		return fmt.Errorf("the agent on %s ended before it had answered: ask again; `beeline status` says whether it runs", q.socket)
	}
	return err
}

// alternatives continues a list of things to do with those that there are.
func alternatives(further ...string) (text string) {
	for i, one := range further {
		switch {
		case one == "":
		case i == len(further)-1 || further[i+1] == "":
			text += ", or " + one
		default:
			text += ", " + one
		}
	}
	return text
}
