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
	"path/filepath"
	"syscall"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/observe"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/sync"
)

// The paths of the socket's HTTP interface. Each answers a GET with JSON.
const (
	StatusPath = "/v1/status" // observe.Status
	TablesPath = "/v1/tables" // observe.Tables
	// CountedTablesPath is TablesPath with what the edge counts by Service.
	CountedTablesPath = TablesPath + "/counted"
	// BackendsPath is answered with observe.Tables that have the backends with their Services, and no
	// backends of frontends.
	BackendsPath = "/v1/backends"
)

// ServicePath is TablesPath for one object, by namespace/name or name alone.
func ServicePath(name string) string { return TablesPath + "?service=" + url.QueryEscape(name) }

// listen makes the unix socket, only for root. One that an earlier agent left
// is replaced: the lock of the bpffs directory says that it does not run.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("--socket: %w", err)
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("--socket %s: longer than %d characters, which a unix socket's path cannot be", path, maxSocketPath)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, fmt.Errorf("--socket %s: another agent answers there: give this one its own --socket", path)
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("--socket %s: there is something that is not a socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("--socket: %w", err)
		}
	}
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("--socket: %w", err)
	}
	return l, nil
}

// maxSocketPath is what fits into sun_path (unix(7)) with its final zero.
const maxSocketPath = 107

// RemoveSocket removes a socket that an agent left when it was killed, and the
// agent's own directory if that is empty then.
func RemoveSocket(path string) {
	if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket != 0 {
		os.Remove(path)
	}
	os.Remove(filepath.Dir(DefaultSocket)) // fails if anything else is in it
}

// answer serves requests until ctx ends.
func (a *Agent) answer(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	answer(mux, StatusPath, a.status)
	answer(mux, CountedTablesPath, a.countedTables)
	mux.HandleFunc("GET "+TablesPath, func(w http.ResponseWriter, r *http.Request) {
		reply(w, r, func(ctx context.Context) (*observe.Tables, error) {
			return a.tables(ctx, observe.Scope{Service: r.URL.Query().Get("service")})
		})
	})
	answer(mux, BackendsPath, func(ctx context.Context) (*observe.Tables, error) {
		return a.tables(ctx, observe.Scope{Outline: true, Owners: true})
	})
	watchers := newWatchers(a.datapath, a.log)
	defer watchers.close()
	mux.HandleFunc("GET "+EventsPath, watchers.stream)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func answer[T any](mux *http.ServeMux, path string, ask func(context.Context) (T, error)) {
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { reply(w, r, ask) })
}

// reply answers with what ask returns, which ends its work with the request: who has gone needs no answer.
func reply[T any](w http.ResponseWriter, r *http.Request, ask func(context.Context) (T, error)) {
	value, err := ask(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(value) // an error means that the client has gone
}

// tables reads the tables and says of each object how far it has come. Objects
// that have nothing in the tables yet are there without frontends.
func (a *Agent) tables(ctx context.Context, scope observe.Scope) (*observe.Tables, error) {
	tables, err := observe.ReadScope(ctx, a.datapath.Tables, scope)
	if err != nil {
		return nil, err
	}
	tables.OutsideServed = datapath.HasEdge(a.config.BPFFS)
	if scope.Service != "" || scope.Owners {
		if err := tables.AddLeaving(a.config.BPFFS, scope); err != nil {
			return nil, err
		}
	}
	at := map[service.Ref]int{}
	for i := range tables.Services {
		at[tables.Services[i].Ref()] = i
	}
	for _, st := range a.syncer.Status() {
		if !scope.Wants(st.Owner) {
			continue
		}
		i, ok := at[st.Owner]
		if !ok {
			i = len(tables.Services)
			tables.Services = append(tables.Services, observe.Service{
				Kind: st.Owner.Kind, Namespace: st.Owner.Namespace, Name: st.Owner.Name, Frontends: []observe.Frontend{},
			})
		}
		s := &tables.Services[i]
		s.State, s.Reasons, s.Problems, s.Refusals = st.State, st.Reasons, st.Problems, st.Refusals
		s.Health = a.health(st.Owner)
		if scope.Service != "" {
			s.AddDown(s.Health)
		}
	}
	if scope.Owners {
		tables.AddDown(a.healthStatus())
	}
	return tables, nil
}

func (a *Agent) countedTables(ctx context.Context) (*observe.Tables, error) {
	tables, err := a.tables(ctx, observe.Scope{})
	if err != nil {
		return nil, err
	}
	names, err := a.datapath.Tables.Services.All()
	if err != nil {
		return nil, err
	}
	return tables, tables.AddCounters(a.config.BPFFS, names)
}

func (a *Agent) status(ctx context.Context) (*observe.Status, error) {
	tables, err := observe.ReadScope(ctx, a.datapath.Tables, observe.Scope{Outline: true})
	if err != nil {
		return nil, err
	}
	s := observe.ReadStatus(a.config.BPFFS, a.version, tables)
	s.Running, s.Answered, s.PID, s.Started = true, true, os.Getpid(), a.started
	s.Node, s.Cgroup, s.Hooks = a.config.NodeName, a.datapath.CgroupPath(), a.datapath.Hooks()
	s.Algorithm, s.TableSize = a.config.Service.Algorithm, a.config.Service.TableSize
	s.DSR, s.DSRHybrid = a.config.Service.DSR, a.config.Service.DSRHybrid
	s.DSRAccepted = a.dsrAccepted(s.Counts.DSR)
	s.Unprotected, s.Unserved = a.datapath.Unprotected, a.config.noEdge
	s.Sync, s.Settling, s.Sockets = a.syncer.Stats(), a.syncer.Settling(a.idleTime), a.sockets.Status()
	if s.Tables, err = a.syncer.Fills(); err != nil {
		return nil, err
	}
	if s.HeldPorts, err = observe.HeldPorts(tables); err != nil {
		s.HeldPortsUnknown = err.Error()
	}
	for _, st := range a.syncer.Status() {
		if st.State != sync.Applied || len(st.Problems) > 0 {
			s.Objects = append(s.Objects, st)
		}
	}
	a.optOutStatus(s)
	a.strayStatus(s)
	s.Health = a.healthStatus()
	s.Edge = a.edge.Complete(s.Edge)
	s.Source = a.sourceStatus()
	a.mu.Lock()
	s.UnknownNode, s.NodeDeleted, s.NoOwnAddress = a.unknownNode, a.nodeDeleted, a.noOwnAddress
	s.UntoldPods = a.untoldPods
	a.mu.Unlock()
	return s, nil
}

// Client asks a running agent.
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

// ErrNotRunning: nothing answers on the socket.
var ErrNotRunning = errors.New("no agent is running there")

// Get reads one of the paths above into value.
func (c *Client) Get(ctx context.Context, path string, value any) error {
	response, err := c.request(ctx, path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.NewDecoder(response.Body).Decode(value)
}

// request asks for one of the paths, and returns an answer that is one.
func (c *Client) request(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.Do(request)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) {
		return nil, ErrNotRunning
	}
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		var text [512]byte
		n, _ := response.Body.Read(text[:])
		if response.StatusCode == http.StatusUnprocessableEntity {
			return nil, observe.NewQuestionError(string(bytes.TrimSpace(text[:n])))
		}
		return nil, fmt.Errorf("the agent answers %s: %s", response.Status, bytes.TrimSpace(text[:n]))
	}
	return response, nil
}
