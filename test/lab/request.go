// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Request connects from the host to a line or datagram server, sends one request and closes. Errors of the
// connection are those of Dial.
func (h *Host) Request(ctx context.Context, network, address, payload string) (Answer, error) {
	conn, err := h.Dial(ctx, network, address)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	return Ask(ctx, conn, payload)
}

// Ask sends one request on an open connection to a line or datagram server and reads the answer. It sets the
// connection's deadline to that of ctx. The payload contains no newline.
func Ask(ctx context.Context, conn net.Conn, payload string) (Answer, error) {
	var answer Answer
	deadline, _ := ctx.Deadline() // the zero time means none
	if err := conn.SetDeadline(deadline); err != nil {
		return answer, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	request := []byte(payload)
	if _, ok := conn.(*net.UDPConn); !ok {
		request = append(request, '\n')
	}
	if _, err := conn.Write(request); err != nil {
		return answer, err
	}
	line, err := readLine(conn)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return answer, fmt.Errorf("answer %q of %s: %w", line, conn.RemoteAddr(), err)
	}
	return answer, nil
}

// readLine reads up to a newline. Servers send only answers, so nothing follows it.
func readLine(conn net.Conn) ([]byte, error) {
	buffer := make([]byte, 0, 65536)
	for {
		n, err := conn.Read(buffer[len(buffer):cap(buffer)])
		if err != nil {
			return nil, err
		}
		buffer = buffer[:len(buffer)+n]
		if n > 0 && buffer[len(buffer)-1] == '\n' {
			return buffer, nil
		}
		if len(buffer) == cap(buffer) {
			return nil, fmt.Errorf("answer of %s is longer than %d bytes", conn.RemoteAddr(), cap(buffer))
		}
	}
}

// Get makes one GET request of the HTTP server in a pod (PortHTTP), by a client that
// reaches it. A status other than 200 is an error.
func Get(ctx context.Context, client *http.Client, url string) (answer Answer, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return answer, err
	}
	response, err := client.Do(request)
	if err != nil {
		return answer, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return answer, fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return answer, json.NewDecoder(response.Body).Decode(&answer)
}
