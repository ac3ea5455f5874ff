// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"beeline.io/beeline/test/lab"
)

// Held is a connection, or a connected UDP socket, from before a change.
type Held struct {
	side    *Side
	probe   Probe
	conn    net.Conn
	backend string
	before  string // the change
}

// hold makes a connection for each probe with an answer, on a side.
func (s *Side) hold(ctx context.Context, scenario *Scenario, probes []Probe, before string) ([]*Held, error) {
	var all []*Held
	for _, p := range probes {
		conn, err := s.Lab.Host(p.From).Dial(ctx, p.Protocol, scenario.address(p, s.Lab).String())
		if err != nil {
			return all, fmt.Errorf("%s: a connection before %s: %+v: %w", s.Name, before, p, err)
		}
		h := &Held{side: s, probe: p, conn: conn, before: before}
		all = append(all, h)
		answer, err := h.ask(ctx, lastSilence)
		if err != nil {
			return all, fmt.Errorf("%v: %w", h, err)
		}
		h.backend = answer.Pod
	}
	return all, nil
}

func (h *Held) String() string {
	return fmt.Sprintf("%s: the connection to %s made before %s (%+v)", h.side.Name, h.backend, h.before, h.probe)
}

func (h *Held) ask(ctx context.Context, patience time.Duration) (lab.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return lab.Ask(ctx, h.conn, "still there?")
}

// lives checks that the old backend still answers.
func (h *Held) lives(ctx context.Context, patience time.Duration) error {
	answer, err := h.ask(ctx, patience)
	if err == nil && answer.Pod != h.backend {
		err = fmt.Errorf("%s answers", answer.Pod)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", h, err)
	}
	return nil
}

// ends waits until Beeline has aborted a connected UDP socket: a read returns ECONNABORTED, a write
// EDESTADDRREQ.
func (h *Held) ends(ctx context.Context) error {
	return within(ctx, func() error {
		answer, err := h.ask(ctx, longSilence)
		switch {
		case errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.EDESTADDRREQ):
			return nil
		case err == nil:
			err = fmt.Errorf("%s answers", answer.Pod)
		}
		return fmt.Errorf("%v: %w", h, err)
	}, func(error) bool { return true })
}
