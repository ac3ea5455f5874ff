// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// Sizes of requests and answers by HTTP/2: below and above a frame, and above the window of a stream.
var streamSizes = []int{0, 1, 1000, 16 << 10, 40000, 100000, 300000}

const (
	http2Streams = 8 // at a time
	grpcMessages = 100
	grpcType     = "application/grpc"
)

// serveHTTP serves HTTP/1.1 and HTTP/2 without TLS until the end of the test.
func (w *world) serveHTTP(listener net.Listener) {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo", echoBody)
	mux.HandleFunc("POST /echo.Echo/Stream", echoMessages)
	mux.HandleFunc("GET /socket", serveWebSocket)
	server := &http.Server{Handler: mux, Protocols: protocols}
	w.t.Cleanup(func() { server.Close() })
	go server.Serve(listener)
}

// http2Client has one connection, and counts how many it has opened.
func http2Client(dial dialer, opened *atomic.Int32) *http.Transport {
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{Protocols: protocols, MaxConnsPerHost: 1, DisableCompression: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			opened.Add(1)
			return dial()
		}}
}

func echoBody(out http.ResponseWriter, request *http.Request) {
	if request.ProtoMajor != 2 {
		http.Error(out, request.Proto, http.StatusHTTPVersionNotSupported)
		return
	}
	io.Copy(out, request.Body)
}

// manyStreams: requests of many sizes at once on one connection by HTTP/2.
func manyStreams(dial dialer) string {
	var opened atomic.Int32
	transport := http2Client(dial, &opened)
	defer transport.CloseIdleConnections()
	var group sync.WaitGroup
	results := make(chan error, http2Streams)
	for i := range http2Streams {
		group.Go(func() {
			for j := range streamSizes {
				size := streamSizes[(i+j)%len(streamSizes)]
				if err := echoedByHTTP(transport, patterned(i, size)); err != nil {
					results <- fmt.Errorf("%d octets: %w", size, err)
					return
				}
			}
		})
	}
	group.Wait()
	close(results)
	if err := <-results; err != nil {
		return outcome(err)
	}
	if n := opened.Load(); n != 1 {
		return fmt.Sprintf("%d connections were opened", n)
	}
	return "ok"
}

func echoedByHTTP(transport *http.Transport, body []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://twin/echo", bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || !bytes.Equal(got, body) {
		return fmt.Errorf("status %d, and other octets come back", response.StatusCode)
	}
	return nil
}

// echoMessages is a method of gRPC with streams both ways, which returns each message.
func echoMessages(out http.ResponseWriter, request *http.Request) {
	out.Header().Set("Content-Type", grpcType)
	out.Header().Set("Trailer", "Grpc-Status")
	flusher := http.NewResponseController(out)
	for {
		message, err := readMessage(request.Body)
		if err == nil {
			err = errors.Join(writeMessage(out, message), flusher.Flush())
		}
		if err != nil {
			out.Header().Set("Grpc-Status", map[bool]string{true: "0", false: "13"}[err == io.EOF])
			return
		}
	}
}

// readMessage reads one as gRPC frames it: an octet for compression, the length, and the message.
func readMessage(from io.Reader) ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err := io.ReadFull(from, message)
	return message, err
}

func writeMessage(to io.Writer, message []byte) error {
	_, err := to.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...))
	return err
}

// bidirectional calls a method of gRPC with streams both ways: each message is answered at once, then both ends send as
// they like; after the end of the requests come the last answers, and the status in the trailer.
func bidirectional(dial dialer) string {
	var opened atomic.Int32
	transport := http2Client(dial, &opened)
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	requests, into := io.Pipe()
	defer into.Close()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://twin/echo.Echo/Stream", requests)
	if err != nil {
		return outcome(err)
	}
	request.Header.Set("Content-Type", grpcType)
	request.Header.Set("Te", "trailers")
	alternates := make(chan bool, grpcMessages)
	go func() {
		for i := range grpcMessages {
			if writeMessage(into, patterned(i, messageSize(i))) != nil {
				return
			}
			if i < grpcMessages/2 && !<-alternates {
				return
			}
		}
		into.Close()
	}()
	defer close(alternates)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return outcome(err)
	}
	defer response.Body.Close()
	for i := range grpcMessages {
		got, err := readMessage(response.Body)
		if err != nil {
			return fmt.Sprintf("message %d: %s", i, outcome(err))
		}
		if !bytes.Equal(got, patterned(i, messageSize(i))) {
			return fmt.Sprintf("message %d: other octets come back", i)
		}
		alternates <- true
	}
	if n, err := response.Body.Read(make([]byte, 1)); n > 0 || err != io.EOF {
		return fmt.Sprintf("%d octets more, %s", n, outcome(err))
	}
	if status := response.Trailer.Get("Grpc-Status"); status != "0" {
		return fmt.Sprintf("the status is %q", status)
	}
	return "ok"
}

// messageSize is that of the i-th message, from nothing to more than the buffers of a proxy take at once.
func messageSize(i int) int { return i * i * 7 % 70000 }
