// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"log/slog"
	"net/http"
	"testing"
)

// Requests for seven kinds run concurrently. A failed one means that the server is unreachable, unless a later
// one was answered: then the failure is outdated.
func TestFailureThatIsOld(t *testing.T) {
	for name, c := range map[string]struct {
		steps     string // b: a request begins; digit: that request is answered; letter: it fails, A the first
		connected bool
	}{
		"the only one fails":                   {"bA", false},
		"a later one has been answered":        {"bb2A", true},
		"an earlier one has been answered":     {"bb1B", false},
		"a later one fails, too":               {"bbb2AC", false},
		"it was away, and a later one got one": {"bAbb3B", true},
	} {
		l := newLink(slog.New(slog.DiscardHandler))
		ends, ended := []chan error{}, make(chan struct{})
		for _, step := range c.steps {
			switch {
			case step == 'b':
				begun, end := make(chan struct{}), make(chan error)
				ends = append(ends, end)
				transport := l.observe(roundTripper(func(*http.Request) (*http.Response, error) {
					close(begun)
					err := <-end
					return &http.Response{StatusCode: http.StatusOK}, err
				}))
				go func() {
					transport.RoundTrip((&http.Request{}).WithContext(t.Context()))
					ended <- struct{}{}
				}()
				<-begun
			case step >= 'A':
				ends[step-'A'] <- errors.New("connection refused")
				<-ended
			default:
				ends[step-'1'] <- nil
				<-ended
			}
		}
		if got := l.connection().Connected; got != c.connected {
			t.Errorf("%s: connected %v, want %v", name, got, c.connected)
		}
		for i := range ends { // those still in progress
			select {
			case ends[i] <- nil:
				<-ended
			default:
			}
		}
	}
}
