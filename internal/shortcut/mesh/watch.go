// SPDX-License-Identifier: Apache-2.0

package mesh

import "context"

// Run serves pods as they start, until ctx ends. It always returns nil.
func (s *Shortcut) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- s.follower.Run(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-s.moved:
			s.followDevices()
		case <-s.located:
			s.serveNew()
		}
	}
}

// serveNew serves pods that have started or moved. What fails is tried again by Repair.
func (s *Shortcut) serveNew() {
	s.work.Lock()
	defer s.work.Unlock()
	if s.started && s.repair(true, false) {
		s.removeOthers()
	}
}
