// SPDX-License-Identifier: Apache-2.0

package sync

// Admit has the door let in what asks for any of the frontends in the tables. One that comes
// while this runs admits itself, before or after.
func (s *Syncer) Admit() {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.applied {
		s.tables.Door.Admit(tableKey(key))
	}
}
