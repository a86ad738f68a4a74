"""The embedded catalog as an Iceberg REST catalog, for engines that know no other kind."""
