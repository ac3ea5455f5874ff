// SPDX-License-Identifier: Apache-2.0

package bpf

// DeleteUnwanted deletes the entries that are not wanted.
func DeleteUnwanted[K comparable, V any](table Hash[K, V], wanted map[K]V) error {
	have, err := table.All()
	if err != nil {
		return err
	}
	for k := range have {
		if _, ok := wanted[k]; ok {
			continue
		}
		if err := table.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// Publish writes the entries that are missing or differ.
func Publish[K, V comparable](table Hash[K, V], wanted map[K]V) error {
	have, err := table.All()
	if err != nil {
		return err
	}
	for k, v := range wanted {
		if old, ok := have[k]; ok && old == v {
			continue
		}
		if err := table.Put(k, v); err != nil {
			return err
		}
	}
	return nil
}

// Mirror writes the entries that are missing or differ, and then deletes those that are not wanted.
func Mirror[K, V comparable](table Hash[K, V], wanted map[K]V) error {
	if err := Publish(table, wanted); err != nil {
		return err
	}
	return DeleteUnwanted(table, wanted)
}
