// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/offline"
)

// listen creates the unix socket, accessible only to root, and beside it the link that PinsOf reads. It replaces the
// socket of an earlier agent, which is not running because this one holds the lock of the bpffs directory.
func listen(path, pins string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("--agent-socket: %w", err)
	}
	if err := checkSocketPath(path); err != nil {
		return nil, err
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		conn.Close()
		return nil, fmt.Errorf("--agent-socket %s: another agent answers there: give this one its own --agent-socket", path)
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("--agent-socket %s: the path exists and is not a socket: remove it or choose another path", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("--agent-socket: %w", err)
		}
	}
	if err := linkPins(path, pins); err != nil {
		return nil, fmt.Errorf("--agent-socket: %w", err)
	}
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("--agent-socket: %w", err)
	}
	return l, nil
}

// linkPins writes the link of a socket. A reader sees the earlier one or this one.
func linkPins(socket, pins string) error {
	link := api.PinsLink(socket)
	temporary := link + ".new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(pins, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, link)
}

// maxSocketPath is the size of sun_path (unix(7)) without the terminating zero.
const maxSocketPath = 107

// RemoveSocket removes the socket of a killed agent and its link to the pins, and the default directory if it is then
// empty. It keeps a socket on which an agent listens, possibly one with another bpffs directory.
func RemoveSocket(path string) {
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return
	}
	if st, err := os.Lstat(path); err == nil && st.Mode()&os.ModeSocket != 0 {
		os.Remove(path)
	}
	if _, err := os.Readlink(api.PinsLink(path)); err == nil {
		os.Remove(api.PinsLink(path))
	}
	os.Remove(filepath.Dir(api.DefaultSocket)) // fails if the directory is not empty
}

// serveSocket serves requests until ctx ends.
func (a *Agent) serveSocket(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.AlivePath, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	handle(mux, api.StatusPath, a.status)
	handle(mux, api.CountedTablesPath, a.countedTables)
	mux.HandleFunc("GET "+api.TablesPath, func(w http.ResponseWriter, r *http.Request) {
		reply(w, r, func(ctx context.Context) (*api.Tables, error) {
			return a.tables(ctx, offline.Scope{Service: r.URL.Query().Get("service")})
		})
	})
	handle(mux, api.BackendsPath, func(ctx context.Context) (*api.Tables, error) {
		return a.tables(ctx, offline.Scope{Outline: true, Owners: true})
	})
	handle(mux, api.MetricsPath, func(context.Context) ([]api.Metric, error) { return a.components.Metrics() })
	for path, ask := range a.components.Answers() {
		handle(mux, path, ask)
	}
	watchers, err := newWatchers(a.datapath, a.log)
	if err != nil {
		return err
	}
	defer watchers.close()
	mux.HandleFunc("GET "+api.EventsPath, watchers.stream)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func handle[T any](mux *http.ServeMux, path string, ask func(context.Context) (T, error)) {
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { reply(w, r, ask) })
}

// reply answers with the value that ask returns. A disconnect of the client cancels ask.
func reply[T any](w http.ResponseWriter, r *http.Request, ask func(context.Context) (T, error)) {
	value, err := ask(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(value) // an error means that the client has disconnected
}
