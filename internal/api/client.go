// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"
)

// SchemaVersion is the version of all JSON and YAML. It is raised when a field changes its meaning or name or is
// removed, not when a field is added. All paths contain it: an agent of another version does not know them.
const SchemaVersion = "2"

const root = "/v" + SchemaVersion

// Paths of the socket's HTTP interface. Each answers a GET with JSON.
const (
	StatusPath = root + "/status" // Status
	TablesPath = root + "/tables" // Tables
	// CountedTablesPath is TablesPath with the edge's counters of each Service.
	CountedTablesPath = TablesPath + "/counted"
	// BackendsPath returns Tables with the backends and their Services, and frontends
	// without backends.
	BackendsPath = root + "/backends"
	MetricsPath  = root + "/metrics" // []Metric, of all components
	// The agent knows these while the component is on.
	MeshPath         = root + "/mesh"
	MeshSessionsPath = root + "/mesh/sessions"
	OffloadFlowsPath = root + "/offload/flows"
)

// ServicePath returns TablesPath for one object, named namespace/name or name.
func ServicePath(name string) string { return TablesPath + "?service=" + url.QueryEscape(name) }

// Client sends requests to a running agent.
type Client struct {
	http.Client
	socket string
}

// NewClient returns a client of the agent that listens on a unix socket.
func NewClient(socket string) *Client {
	return &Client{http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}},
	}, socket}
}

// ErrNotRunning means that no agent answers on the socket.
var ErrNotRunning = errors.New("no agent is running there")

// ErrNoAnswer means that an agent has the socket, and does not answer.
var ErrNoAnswer = errors.New("the agent there does not answer")

// ErrUnknownPath means that the agent does not know the path: it is of another version, or the path is that of a
// component that is off.
var ErrUnknownPath = errors.New("the agent there has no answer to this")

// ErrNotAgent means that the answer is none of an agent.
var ErrNotAgent = errors.New("what answers there is no agent")

var errNotPermitted = errors.New("only root may use the agent's socket: run this as root (sudo)")

// ErrEnded means that the agent ended before it had answered.
var ErrEnded = errors.New("the agent ended before it had answered")

// answerTime is how long an agent may take to answer at all. It does so without reading tables.
const answerTime = time.Second

// An agent gets further seconds, answerTries in all, if it has used or waited for a CPU for busyShare of each.
const (
	answerTries = 10
	busyShare   = 100 * time.Millisecond
)

// AlivePath answers without content while the agent's process runs, whatever its loop does.
const AlivePath = root + "/alive"

// Alive returns nil if an agent answers, also an earlier version that does not know the path.
//
// Errors: ErrNotRunning; ErrNoAnswer after a second, or up to ten if the agent is at work or waits for a CPU.
func (c *Client) Alive(ctx context.Context) error {
	before, known := cpuTime(c.socket)
	for try := 1; ; try++ {
		err := c.answers(ctx)
		if try == answerTries || !known || !errors.Is(err, ErrNoAnswer) {
			return err
		}
		now, ok := cpuTime(c.socket)
		if !ok || now-before < busyShare*time.Duration(try) {
			return err
		}
	}
}

// answers is Alive within answerTime.
func (c *Client) answers(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	response, err := c.request(limited, AlivePath)
	if err == nil {
		return response.Body.Close()
	}
	if limited.Err() != nil && ctx.Err() == nil {
		return ErrNoAnswer
	}
	if errors.Is(err, ErrNotRunning) || errors.Is(err, errNotPermitted) || ctx.Err() != nil {
		return err
	}
	return nil // Get says what is wrong with the answer
}

// Get reads one of the paths above into value. An agent has 10 seconds for it.
//
// Errors: those above; *RequestError; that of ctx.
func (c *Client) Get(ctx context.Context, path string, value any) error {
	response, err := c.request(ctx, path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return failure(ctx, json.NewDecoder(response.Body).Decode(value))
}

// failure translates an error of a connection to a unix socket, and of what was read from it.
func failure(ctx context.Context, err error) error {
	syntax, wrongType, slow := (*json.SyntaxError)(nil), (*json.UnmarshalTypeError)(nil), net.Error(nil)
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
		return ErrNotRunning
	case errors.Is(err, os.ErrPermission):
		return errNotPermitted
	case errors.As(err, &slow) && slow.Timeout():
		return ErrNoAnswer
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return ErrEnded
	case errors.As(err, &syntax), errors.As(err, &wrongType), strings.Contains(err.Error(), "malformed HTTP"):
		return ErrNotAgent
	}
	return fmt.Errorf("ask the agent: %w", err)
}

// request sends a GET, and returns the response if it is 200 OK.
func (c *Client) request(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.Do(request)
	if err != nil {
		return nil, failure(ctx, err)
	}
	if response.StatusCode/100 == 2 {
		return response, nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxFailure))
	text = bytes.TrimSpace(text)
	switch {
	case response.StatusCode == http.StatusUnprocessableEntity:
		return nil, NewRequestError(string(text))
	case response.StatusCode == http.StatusNotFound && string(text) == noSuchPage:
		return nil, ErrUnknownPath
	}
	return nil, fmt.Errorf("the agent cannot answer: %s", text)
}

// maxFailure bounds the text of an error, in bytes. noSuchPage is net/http's for a path that the agent does not know.
const (
	maxFailure = 2048
	noSuchPage = "404 page not found"
)
