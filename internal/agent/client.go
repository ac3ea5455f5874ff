// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"
	"time"

	"beeline.io/beeline/internal/inspect"
)

// Paths of the socket's HTTP interface. Each answers a GET with JSON.
const (
	StatusPath = "/v1/status" // inspect.Status
	TablesPath = "/v1/tables" // inspect.Tables
	// CountedTablesPath is TablesPath with the edge's counters of each Service.
	CountedTablesPath = TablesPath + "/counted"
	// BackendsPath returns inspect.Tables with the backends and their Services, and frontends
	// without backends.
	BackendsPath = "/v1/backends"
	MetricsPath  = "/v1/metrics" // []inspect.Metric, of all components
)

// ServicePath returns TablesPath for one object, named namespace/name or name.
func ServicePath(name string) string { return TablesPath + "?service=" + url.QueryEscape(name) }

// Client sends requests to a running agent.
type Client struct{ http.Client }

// NewClient returns a client of the agent that listens on a unix socket.
func NewClient(socket string) *Client {
	return &Client{http.Client{
		Timeout: 10 * time.Second,
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}},
	}}
}

// ErrNotRunning means that no agent answers on the socket.
var ErrNotRunning = errors.New("no agent is running there")

// ErrNoAnswer means that an agent has the socket, and does not answer.
var ErrNoAnswer = errors.New("the agent there does not answer")

// answerTime is how long an agent may take to answer at all. It does so without reading tables.
const answerTime = time.Second

// alivePath answers without content while the agent's process runs, whatever its loop does.
const alivePath = "/v1/alive"

// Alive returns nil if an agent answers, also an earlier version that does not know the path.
//
// Errors: ErrNotRunning; ErrNoAnswer after a second.
func (c *Client) Alive(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	response, err := c.request(limited, alivePath)
	if err == nil {
		return response.Body.Close()
	}
	if limited.Err() != nil && ctx.Err() == nil {
		return ErrNoAnswer
	}
	if errors.Is(err, ErrNotRunning) || errors.Is(err, os.ErrPermission) {
		return err
	}
	return nil
}

// Get reads one of the paths above into value.
func (c *Client) Get(ctx context.Context, path string, value any) error {
	response, err := c.request(ctx, path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(value)
}

// request sends a GET, and returns the response if it is 200 OK.
func (c *Client) request(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.Do(request)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
		return nil, ErrNotRunning
	}
	if errors.Is(err, os.ErrPermission) {
		return nil, errors.New("only root may use the agent's socket: run this as root (sudo)")
	}
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		var text [512]byte
		n, _ := response.Body.Read(text[:])
		if response.StatusCode == http.StatusUnprocessableEntity {
			return nil, inspect.NewRequestError(string(bytes.TrimSpace(text[:n])))
		}
		return nil, fmt.Errorf("the agent answers %s: %s", response.Status, bytes.TrimSpace(text[:n]))
	}
	return response, nil
}
