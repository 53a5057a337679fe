<?xml version="1.0"?>
<!--
  Copyright (c) 2026, LazyDrop developers

  Turn the manual into one in which the chapter on lazy drop and the page on pg_lazydrop
  are manual pages.  Other manual pages keep what a reference to them shows.
-->
<xsl:stylesheet xmlns:xsl="http://www.w3.org/1999/XSL/Transform" version="1.0">

<xsl:param name="major"/>

<xsl:key name="ours" match="chapter[@id='lazydrop']" use="@id"/>
<xsl:key name="ours" match="chapter[@id='lazydrop']//*[@id]" use="@id"/>
<xsl:key name="ours" match="sect1[@id='pglazydrop']" use="@id"/>
<xsl:key name="ours" match="sect1[@id='pglazydrop']//*[@id]" use="@id"/>

<xsl:template match="@*|node()">
  <xsl:copy>
    <xsl:apply-templates select="@*|node()"/>
  </xsl:copy>
</xsl:template>

<xsl:template match="refentry">
  <xsl:copy>
    <xsl:copy-of select="@*|refmeta|refnamediv"/>
  </xsl:copy>
</xsl:template>

<xsl:template match="/book">
  <xsl:copy>
    <xsl:apply-templates select="@*|node()"/>
    <xsl:apply-templates mode="page" select="key('ours', 'lazydrop')">
      <xsl:with-param name="name" select="concat('lazydrop-', $major)"/>
      <xsl:with-param name="purpose">lazy drop of relations and databases</xsl:with-param>
    </xsl:apply-templates>
    <xsl:apply-templates mode="page" select="key('ours', 'pglazydrop')">
      <xsl:with-param name="name" select="concat('pg_lazydrop-', $major)"/>
      <xsl:with-param name="purpose">monitor the lazy drop of relations and databases</xsl:with-param>
    </xsl:apply-templates>
  </xsl:copy>
</xsl:template>

<xsl:template mode="page" match="*[@id='lazydrop']|*[@id='pglazydrop']">
  <xsl:param name="name"/>
  <xsl:param name="purpose"/>
  <refentry>
    <refmeta>
      <refentrytitle><xsl:value-of select="$name"/></refentrytitle>
      <manvolnum>7</manvolnum>
    </refmeta>
    <refnamediv>
      <refname><xsl:value-of select="$name"/></refname>
      <refpurpose><xsl:value-of select="$purpose"/></refpurpose>
    </refnamediv>
    <refsect1>
      <title>Description</title>
      <xsl:apply-templates mode="page" select="*[not(self::title or self::sect1 or self::sect2)]"/>
    </refsect1>
    <xsl:apply-templates mode="page" select="sect1|sect2"/>
  </refentry>
</xsl:template>

<xsl:template mode="page" match="@*|node()">
  <xsl:copy>
    <xsl:apply-templates mode="page" select="@*|node()"/>
  </xsl:copy>
</xsl:template>

<!-- An identifier belongs to the original. -->
<xsl:template mode="page" match="@id|indexterm"/>

<xsl:template mode="page" match="sect1[@id != 'pglazydrop']|sect2">
  <xsl:variable name="page" select="ancestor::*[@id='lazydrop' or @id='pglazydrop']"/>
  <xsl:element name="refsect{count(ancestor::*) - count($page/ancestor::*)}">
    <xsl:apply-templates mode="page"/>
  </xsl:element>
</xsl:template>

<!-- A table of columns has one cell in a row: what it is about, and the description. -->
<xsl:template mode="page" match="table[descendant::entry[para[2]]]">
  <variablelist>
    <xsl:apply-templates mode="page" select="title"/>
    <xsl:for-each select="tgroup/tbody/row/entry">
      <varlistentry>
        <term><xsl:apply-templates mode="page" select="para[1]/node()"/></term>
        <listitem><xsl:apply-templates mode="page" select="para[position() != 1]"/></listitem>
      </varlistentry>
    </xsl:for-each>
  </variablelist>
</xsl:template>

<xsl:template mode="page" match="xref[key('ours', @linkend)]">
  <xsl:variable name="to" select="key('ours', @linkend)"/>
  <xsl:choose>
    <xsl:when test="$to/@xreflabel">
      <literal><xsl:value-of select="$to/@xreflabel"/></literal>
    </xsl:when>
    <xsl:otherwise>
      <quote><xsl:value-of select="normalize-space($to/title)"/></quote>
    </xsl:otherwise>
  </xsl:choose>
</xsl:template>

</xsl:stylesheet>
