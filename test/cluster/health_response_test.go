// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"beeline.io/beeline/test/lab"
)

// response is what a client of HTTP sees, without the header Date.
type response struct {
	status        int
	headers, body string
}

func (h *healthTest) get(ctx context.Context, url string) (response, error) {
	return get(ctx, h.node, url)
}

// get makes a request from a host.
func get(ctx context.Context, from *lab.Host, url string) (response, error) {
	client := http.Client{Transport: &http.Transport{DialContext: from.Dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return response{}, err
	}
	r, err := client.Do(request)
	if err != nil {
		return response{}, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	r.Header.Del("Date")
	var headers strings.Builder
	err = errors.Join(err, r.Header.Write(&headers))
	return response{r.StatusCode, headers.String(), string(body)}, err
}

// weight is the number of endpoints in the header, -1 if that or the status contradicts the body.
func (r response) weight() int {
	found := regexp.MustCompile(`X-Load-Balancing-Endpoint-Weight: (\d+)`).FindStringSubmatch(r.headers)
	if found == nil || !strings.Contains(r.body, `"localEndpoints": `+found[1]+",") || (r.status == 200) != (found[1] != "0") {
		return -1
	}
	n, _ := strconv.Atoi(found[1])
	return n
}

// masked is the response without times, on which its length depends.
func (r response) masked() response {
	r.body = regexp.MustCompile(`"\d{4}-\d\d-\d\dT[^"]+"`).ReplaceAllString(r.body, `"TIME"`)
	r.headers = regexp.MustCompile(`Content-Length: \d+`).ReplaceAllString(r.headers, "Content-Length: N")
	return r
}

// takeReasons removes and returns the field that kube-proxy does not have.
func (r *response) takeReasons() string {
	before, reasons, found := strings.Cut(r.body, `,"reasons":`)
	if !found {
		return ""
	}
	r.body = before + "}"
	return reasons
}

func (r response) String() string { return fmt.Sprintf("%d\n%s\n%s", r.status, r.headers, r.body) }

// wantHealth asks an agent on a node for its own health.
func (c *Cluster) wantHealth(t *testing.T, name string, healthz, livez int) {
	t.Helper()
	for path, want := range map[string]int{"/healthz": healthz, "/livez": livez} {
		eventually(t, fmt.Sprintf("%s on %s answers %d", path, name, want), func() error {
			r, err := get(t.Context(), c.Lab.Host(name), "http://127.0.0.1:10256"+path)
			if err == nil && r.status != want {
				err = fmt.Errorf("%v", r)
			}
			return err
		})
	}
}
