// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// WebSocket, RFC 6455: what the two ends of the test need.
const (
	webSocketKey    = "dGhlIHNhbXBsZSBub25jZQ=="
	webSocketGUID   = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
	webSocketFrames = 100

	opBinary, opClose = 2, 8
)

func webSocketAccept(key string) string {
	sum := sha1.Sum([]byte(key + webSocketGUID))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// appendFrame appends a frame, masked as those of clients.
func appendFrame(to []byte, op byte, masked bool, text []byte) []byte {
	mask := byte(0)
	if masked {
		mask = 0x80
	}
	to = append(to, 0x80|op)
	switch n := len(text); {
	case n < 126:
		to = append(to, mask|byte(n))
	case n < 1<<16:
		to = binary.BigEndian.AppendUint16(append(to, mask|126), uint16(n))
	default:
		to = binary.BigEndian.AppendUint64(append(to, mask|127), uint64(n))
	}
	if !masked {
		return append(to, text...)
	}
	key := [4]byte{0x37, 0xfa, 0x21, 0x3d}
	to = append(to, key[:]...)
	for i, b := range text {
		to = append(to, b^key[i%4])
	}
	return to
}

func readFrame(from io.Reader) (op byte, text []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1] & 0x7f)
	if more := map[uint64]int{126: 2, 127: 8}[size]; more > 0 {
		var long [8]byte
		if _, err := io.ReadFull(from, long[8-more:]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(long[:])
	}
	var key [4]byte
	if head[1]&0x80 != 0 {
		if _, err := io.ReadFull(from, key[:]); err != nil {
			return 0, nil, err
		}
	}
	text = make([]byte, size)
	_, err = io.ReadFull(from, text)
	for i := range text {
		text[i] ^= key[i%4]
	}
	return head[0] & 0x0f, text, err
}

// exchangeFrames sends frames, and a last one, while the other end does the same. The frames of the two ends differ.
func exchangeFrames(from io.Reader, to io.Writer, client bool) error {
	own, others := 0, 1000
	if client {
		own, others = others, own
	}
	written := make(chan error, 1)
	go func() {
		for i := range webSocketFrames {
			if _, err := to.Write(appendFrame(nil, opBinary, client, patterned(own+i, messageSize(i)))); err != nil {
				written <- err
				return
			}
		}
		_, err := to.Write(appendFrame(nil, opClose, client, []byte{0x03, 0xe8}))
		written <- err
	}()
	for i := range webSocketFrames {
		op, text, err := readFrame(from)
		if err != nil {
			return fmt.Errorf("frame %d: %w", i, err)
		}
		if op != opBinary || !bytes.Equal(text, patterned(others+i, messageSize(i))) {
			return fmt.Errorf("frame %d arrives wrong", i)
		}
	}
	if op, text, err := readFrame(from); err != nil || op != opClose || !bytes.Equal(text, []byte{0x03, 0xe8}) {
		return fmt.Errorf("the last frame: %d %x: %w", op, text, err)
	}
	return <-written
}

// serveWebSocket exchanges frames, and closes the connection. The client reports what it does not get.
func serveWebSocket(out http.ResponseWriter, request *http.Request) {
	if request.Header.Get("Upgrade") != "websocket" || request.Header.Get("Sec-WebSocket-Version") != "13" {
		http.Error(out, "no WebSocket", http.StatusBadRequest)
		return
	}
	conn, buffered, err := http.NewResponseController(out).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		webSocketAccept(request.Header.Get("Sec-WebSocket-Key")))
	exchangeFrames(buffered, conn, false)
}

// webSocket upgrades a connection; both ends send frames at once.
func webSocket(dial dialer) string {
	conn, err := dial()
	if err != nil {
		return outcome(err)
	}
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "GET /socket HTTP/1.1\r\nHost: twin\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n", webSocketKey)
	if err != nil {
		return "write: " + outcome(err)
	}
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return outcome(err)
	}
	if response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("Sec-WebSocket-Accept") != webSocketAccept(webSocketKey) {
		return "no upgrade: " + response.Status
	}
	if err := exchangeFrames(reader, conn, true); err != nil {
		return outcome(err)
	}
	_, err = reader.ReadByte()
	if !errors.Is(err, io.EOF) {
		return outcomeOfEnd(err)
	}
	return "ok"
}
