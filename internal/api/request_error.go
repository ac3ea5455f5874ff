// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
)

// RequestError is an error in the request, not in the agent.
type RequestError struct{ text string }

func (e *RequestError) Error() string { return e.text }

// NewRequestError returns the error that a client received as text.
func NewRequestError(text string) *RequestError { return &RequestError{text} }

func BadRequest(format string, args ...any) error { return &RequestError{fmt.Sprintf(format, args...)} }
