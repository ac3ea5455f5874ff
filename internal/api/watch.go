// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
)

// EventsPath answers a GET with a stream of EventMessage, one JSON object per line, until the client
// disconnects. The first message is empty, and sent once events are being reported. The query is an
// Filter.
const EventsPath = root + "/events"

// Watch calls ready once events are being reported, and f for each message, until ctx ends, f fails or the
// agent stops. It returns an *RequestError for a filter with unknown names.
func (c *Client) Watch(ctx context.Context, filter Filter, ready func(), f func(EventMessage) error) error {
	endless := *c
	endless.Timeout = 0
	response, err := endless.request(ctx, EventsPath+"?"+filter.Query())
	if err != nil {
		return err
	}
	defer response.Body.Close()
	notices := json.NewDecoder(response.Body)
	for {
		var n EventMessage
		if err := notices.Decode(&n); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return failure(ctx, err)
		}
		if n == (EventMessage{}) {
			ready()
		} else if err := f(n); err != nil {
			return err
		}
	}
}
